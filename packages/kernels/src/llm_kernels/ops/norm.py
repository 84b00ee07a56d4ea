"""The norm ops: RMS norm, alone and fused with the residual addition."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import torch

from llm_kernels.backends import cpp_backend, torch_backend, triton_backends
from llm_kernels.reference import norm as reference_norm
from llm_kernels.registry import Op

_Norm: TypeAlias = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, float], None]

RMS_NORM: Op[_Norm] = Op(
    "rms_norm",
    [
        torch_backend(reference_norm.rms_norm),
        cpp_backend("norm", "rms_norm"),
        *triton_backends("norm", "rms_norm"),
    ],
    default_size=4096,
)
FUSED_ADD_RMS_NORM: Op[_Norm] = Op(
    "fused_add_rms_norm",
    [
        torch_backend(reference_norm.fused_add_rms_norm),
        cpp_backend("norm", "fused_add_rms_norm"),
        *triton_backends("norm", "fused_add_rms_norm"),
    ],
    default_size=4096,
)


def rms_norm(out: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, eps: float) -> None:
    """Write `x / rms(x) * weight` over the last dimension into `out`.

    Computed in float32 and rounded once. `out` may be `x`.

    Args:
        out: [T, E] or [T, H, D] (norm per head), dtype of `x`; the last dimension contiguous.
        x: Same shape; may be a strided view such as one part of a fused projection.
        weight: [E] or [D].
        eps: Added to the mean square.
    """
    RMS_NORM.pick(x.device, x.dtype, x.shape[-1])(out, x, weight, eps)


def fused_add_rms_norm(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float) -> None:
    """In place: `residual += x`, then `x = rms_norm(residual)`.

    The norm reads the sum as rounded to the dtype of `residual`, as the two single ops would.

    Args:
        x: [T, E]; in: the layer's output, out: the normalised sum.
        residual: [T, E], same dtype; in: the residual stream, out: the sum.
        weight: [E].
        eps: Added to the mean square.
    """
    FUSED_ADD_RMS_NORM.pick(x.device, x.dtype, x.shape[-1])(x, residual, weight, eps)
