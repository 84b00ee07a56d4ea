"""Owns filling parameters with seeded random numbers, for benchmarks; knows nothing about files."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from llm_models.loading.e4m3 import E4M3, quantize
from llm_models.parameters import Parameter, scale_names
from llm_models.quantization import Scheme

_STANDARD_DEVIATION = 0.02
# Six standard deviations of inputs of unit size are the largest e4m3 number.
_INPUT_SCALE = 6 / 448


def fill_random(
    parameters: Mapping[str, Tensor],
    specs: Sequence[Parameter],
    *,
    dtype: torch.dtype,
    scheme: Scheme | None = None,
    seed: int = 0,
) -> None:
    """Fills the parameters in place, on their device: norms with 1, all else with N(0, 0.02).

    The same seed gives the same numbers on the same kind of device and in the same dtype. Weights that are
    e4m3 are these numbers quantized, one parameter at a time.

    Args:
        parameters: By name, all on one device.
        specs: Their specs; the order decides the numbers.
        dtype: Of the model.
        scheme: How it is quantized; needed where a parameter is e4m3.
        seed: Of the generator.
    """
    device = next(iter(parameters.values())).device
    generator = torch.Generator(device).manual_seed(seed)
    scales = {name for spec in specs if spec.dtype == E4M3 for name in scale_names(spec.name)}
    for spec in specs:
        parameter = parameters[spec.name]
        if spec.dtype == E4M3 and scheme is not None:
            wide = torch.empty(spec.shape, dtype=dtype, device=device)
            wide.normal_(0.0, _STANDARD_DEVIATION, generator=generator)
            scale = parameters[scale_names(spec.name)[0]]
            last = spec.lead - 1
            quantize(
                wide.flatten(0, last), scheme.weights, parameter.flatten(0, last), scale.flatten(0, last)
            )
        elif spec.name not in scales:
            if spec.kind == "norm":
                parameter.fill_(1.0)
            else:
                parameter.normal_(0.0, _STANDARD_DEVIATION, generator=generator)
        elif spec.name.endswith(".input_scale"):
            parameter.fill_(_INPUT_SCALE)
