"""The norm ops: RMS norm and layer norm, alone and fused with the residual addition."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import torch

from llm_kernels.backends import by_row_backend, cpp_backend, torch_backend, triton_backends
from llm_kernels.reference import norm as reference_norm
from llm_kernels.registry import Op

_Norm: TypeAlias = Callable[[torch.Tensor, torch.Tensor, torch.Tensor | None, float], None]
_LayerNorm: TypeAlias = Callable[
    [torch.Tensor, torch.Tensor, torch.Tensor | None, torch.Tensor | None, float], None
]

RMS_NORM: Op[_Norm] = Op(
    "rms_norm",
    [
        torch_backend(reference_norm.rms_norm),
        by_row_backend("rms_norm"),
        cpp_backend("norm", "rms_norm", is_batch_invariant=True),
        *triton_backends("norm", "rms_norm", is_batch_invariant=True),
    ],
    default_size=4096,
)
FUSED_ADD_RMS_NORM: Op[_Norm] = Op(
    "fused_add_rms_norm",
    [
        torch_backend(reference_norm.fused_add_rms_norm),
        by_row_backend("fused_add_rms_norm"),
        cpp_backend("norm", "fused_add_rms_norm", is_batch_invariant=True),
        *triton_backends("norm", "fused_add_rms_norm", is_batch_invariant=True),
    ],
    default_size=4096,
)
LAYER_NORM: Op[_LayerNorm] = Op(
    "layer_norm",
    [
        torch_backend(reference_norm.layer_norm),
        by_row_backend("layer_norm"),
        *triton_backends("norm", "layer_norm", is_batch_invariant=True),
    ],
    default_size=4096,
)
FUSED_ADD_LAYER_NORM: Op[_LayerNorm] = Op(
    "fused_add_layer_norm",
    [
        torch_backend(reference_norm.fused_add_layer_norm),
        by_row_backend("fused_add_layer_norm"),
        *triton_backends("norm", "fused_add_layer_norm", is_batch_invariant=True),
    ],
    default_size=4096,
)


def rms_norm(out: torch.Tensor, x: torch.Tensor, weight: torch.Tensor | None, eps: float) -> None:
    """Write `x / rms(x) * weight` over the last dimension into `out`.

    Computed in float32 and rounded once. `out` may be `x`.

    Args:
        out: [T, E] or [T, H, D] (norm per head), dtype of `x`; the last dimension contiguous.
        x: Same shape; may be a strided view such as one part of a fused projection.
        weight: [E] or [D], or [H, D] (each head its own); float32 or the dtype of `x`; None for none.
        eps: Added to the mean square.

    Raises:
        InvalidArgument: Shapes or dtypes that do not fit.
    """
    RMS_NORM.pick(x.device, x.dtype, x.shape[-1])(out, x, weight, eps)


def fused_add_rms_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor | None, eps: float
) -> None:
    """In place: `residual += x`, then `x = rms_norm(residual)`.

    The norm reads the sum as rounded to the dtype of `residual`, as the two single ops would.

    Args:
        x: [T, E]; in: the layer's output, out: the normalised sum.
        residual: [T, E], same dtype; in: the residual stream, out: the sum.
        weight: [E]; float32 or the dtype of `x`; None for none.
        eps: Added to the mean square.

    Raises:
        InvalidArgument: Shapes or dtypes that do not fit.
    """
    FUSED_ADD_RMS_NORM.pick(x.device, x.dtype, x.shape[-1])(x, residual, weight, eps)


def layer_norm(
    out: torch.Tensor, x: torch.Tensor, weight: torch.Tensor | None, bias: torch.Tensor | None, eps: float
) -> None:
    """Write `(x - mean(x)) / sqrt(var(x) + eps) * weight + bias` over the last dimension into `out`.

    Computed in float32 and rounded once. `out` may be `x`.

    Args:
        out: [T, E] or [T, H, D] (norm per head), dtype of `x`; the last dimension contiguous.
        x: Same shape; may be a strided view.
        weight: [E] or [D], or [H, D] (each head its own); float32 or the dtype of `x`; None for none.
        bias: Likewise.
        eps: Added to the variance (the mean of the squares, not the unbiased estimate).

    Raises:
        InvalidArgument: Shapes or dtypes that do not fit.
    """
    LAYER_NORM.pick(x.device, x.dtype, x.shape[-1])(out, x, weight, bias, eps)


def fused_add_layer_norm(
    x: torch.Tensor,
    residual: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    eps: float,
) -> None:
    """In place: `residual += x`, then `x = layer_norm(residual)`.

    The norm reads the sum as rounded to the dtype of `residual`, as the two single ops would.

    Args:
        x: [T, E]; in: the layer's output, out: the normalised sum.
        residual: [T, E], same dtype; in: the residual stream, out: the sum.
        weight: [E]; float32 or the dtype of `x`; None for none.
        bias: Likewise.
        eps: Added to the variance.

    Raises:
        InvalidArgument: Shapes or dtypes that do not fit.
    """
    FUSED_ADD_LAYER_NORM.pick(x.device, x.dtype, x.shape[-1])(x, residual, weight, bias, eps)
