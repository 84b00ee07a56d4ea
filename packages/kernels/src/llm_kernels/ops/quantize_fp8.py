"""The ops that quantize activations to e4m3: alone, after an RMS norm, after a gated activation."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import torch

from llm_kernels.backends import torch_backend, triton_backends
from llm_kernels.errors import InvalidArgument
from llm_kernels.ops.activation import ActivationKind
from llm_kernels.ops.fp8_support import has_e4m3
from llm_kernels.reference import quantize_fp8 as reference
from llm_kernels.registry import Op

_Tensor: TypeAlias = torch.Tensor
_Quantize: TypeAlias = Callable[[_Tensor, _Tensor, _Tensor, _Tensor | None], None]
_Norm: TypeAlias = Callable[[_Tensor, _Tensor, _Tensor, _Tensor | None, _Tensor | None, float], None]
_Gated: TypeAlias = Callable[[_Tensor, _Tensor, _Tensor, str], None]

QUANTIZE_FP8: Op[_Quantize] = Op(
    "quantize_fp8",
    [
        torch_backend(reference.quantize_fp8),
        *triton_backends("quantize_fp8", "quantize_fp8", accepts=has_e4m3),
    ],
    default_size=4096,
)
RMS_NORM_FP8: Op[_Norm] = Op(
    "rms_norm_fp8",
    [
        torch_backend(reference.rms_norm_fp8),
        *triton_backends("quantize_fp8", "rms_norm_fp8", accepts=has_e4m3),
    ],
    default_size=4096,
)
GATED_ACTIVATION_FP8: Op[_Gated] = Op(
    "gated_activation_fp8",
    [
        torch_backend(reference.gated_activation_fp8),
        *triton_backends("quantize_fp8", "gated_activation_fp8", accepts=has_e4m3),
    ],
    default_size=8192,
)


def quantize_fp8(
    values_TI: torch.Tensor,
    scales_TG: torch.Tensor,
    x_TI: torch.Tensor,
    *,
    scale: torch.Tensor | None = None,
) -> None:
    """Write `x` as e4m3 values and float32 scales: `x` is about `values * scales`.

    A scale is the largest magnitude that it stands for over 448, the largest e4m3 number.

    Args:
        values_TI: float8_e4m3fn [T, I], contiguous.
        scales_TG: float32 [T, 1] for one scale a token, or [T, ceil(I / 128)] for one a token and group of
            128; any strides.
        x_TI: [T, I]; the last dimension contiguous.
        scale: float32 []: take this for every scale, and cut off what lies beyond it.

    Raises:
        InvalidArgument: Shapes or dtypes that do not fit.
    """
    QUANTIZE_FP8.pick(x_TI.device, x_TI.dtype, x_TI.shape[-1])(values_TI, scales_TG, x_TI, scale)


def rms_norm_fp8(
    values_TI: torch.Tensor,
    scales_TG: torch.Tensor,
    x_TI: torch.Tensor,
    weight_I: torch.Tensor | None,
    eps: float,
    *,
    residual_TI: torch.Tensor | None = None,
) -> None:
    """Write the RMS norm of `x` as e4m3 values and scales, rounded once.

    Args:
        values_TI: float8_e4m3fn [T, I], contiguous.
        scales_TG: As in `quantize_fp8`.
        x_TI: [T, I]; the last dimension contiguous. It is left as it is.
        weight_I: [I]; float32 or the dtype of `x`; None for none.
        eps: Added to the mean square.
        residual_TI: [T, I], dtype of `x`: `x` is added to it first, in place, and the sum is normed.

    Raises:
        InvalidArgument: Shapes or dtypes that do not fit.
    """
    norm = RMS_NORM_FP8.pick(x_TI.device, x_TI.dtype, x_TI.shape[-1])
    norm(values_TI, scales_TG, x_TI, residual_TI, weight_I, eps)


def gated_activation_fp8(
    values_TI: torch.Tensor, scales_TG: torch.Tensor, gate_up_TF: torch.Tensor, kind: ActivationKind = "silu"
) -> None:
    """Write `act(gate) * up` as e4m3 values and scales, rounded once.

    Args:
        values_TI: float8_e4m3fn [T, I], contiguous.
        scales_TG: As in `quantize_fp8`.
        gate_up_TF: [T, 2 * I], the gate half first.
        kind: The function applied to the gate; see `activation`. Not "xielu".

    Raises:
        InvalidArgument: "xielu", or shapes or dtypes that do not fit.
    """
    if kind == "xielu":
        raise InvalidArgument("kind", "xielu is not for gates")
    gate = GATED_ACTIVATION_FP8.pick(gate_up_TF.device, gate_up_TF.dtype, gate_up_TF.shape[-1])
    gate(values_TI, scales_TG, gate_up_TF, kind)
