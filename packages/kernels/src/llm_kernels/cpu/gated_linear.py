"""Gated linear layers in C++ on the CPU: the other wrapper of csrc/cpu/linear."""

from __future__ import annotations

import torch

from llm_kernels.cpu.library import invalid, native
from llm_kernels.cpu.linear import takes
from llm_kernels.ops.activation import ActivationKind
from llm_kernels.ops.gated_linear import composed

_gated_linear = native("gated_linear")


def gated_linear(
    x: torch.Tensor,
    weight: torch.Tensor,
    kind: ActivationKind,
    bias: torch.Tensor | None,
    weight_scale: torch.Tensor | None,
) -> torch.Tensor:
    """C++ back end of `ops.gated_linear`; what it has no kernels for goes through two ops."""
    if weight_scale is not None or not takes(x, weight):
        return composed(x, weight, kind, bias, weight_scale)
    out = x.new_empty((x.shape[0], weight.shape[0] // 2))
    try:
        _gated_linear(out, x, weight, bias, kind, torch.get_num_threads())
    except ValueError as error:
        raise invalid(error) from None
    return out
