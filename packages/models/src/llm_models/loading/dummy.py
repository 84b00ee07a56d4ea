"""Owns filling parameters with seeded random numbers, for benchmarks; knows nothing about files."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from llm_models.parameters import Parameter

_STANDARD_DEVIATION = 0.02


def fill_random(parameters: Mapping[str, Tensor], specs: Sequence[Parameter], *, seed: int = 0) -> None:
    """Fills the parameters in place, on their device: norms with 1, all else with N(0, 0.02).

    The same seed gives the same numbers on the same kind of device and in the same dtype.

    Args:
        parameters: By name, all on one device.
        specs: Their specs; the order decides the numbers.
        seed: Of the generator.
    """
    device = next(iter(parameters.values())).device
    generator = torch.Generator(device).manual_seed(seed)
    for spec in specs:
        if spec.kind == "norm":
            parameters[spec.name].fill_(1.0)
        else:
            parameters[spec.name].normal_(0.0, _STANDARD_DEVIATION, generator=generator)
