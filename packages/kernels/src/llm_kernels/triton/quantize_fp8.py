"""Quantization to e4m3 in Triton, alone and behind a norm or a gate; knows nothing about matrix products.

One program holds a row in registers, so that its largest magnitude is known before it is written; where every
group has a scale of its own, and nothing else needs the whole row, a piece of it.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from llm_kernels.checks import check_inner_contiguous, check_norm, check_shape
from llm_kernels.fp8_format import (
    E4M3_MAX,
    GROUP,
    LEAST,
    check_contiguous,
    check_input_scale,
    check_quantized,
)
from llm_kernels.triton.activation import activate, activation_number
from llm_kernels.triton.dependent_launch import launch_options, let_later_start, wait_for_earlier
from llm_kernels.triton.launch_sizes import ceil_div, power_of_2

_PLAIN, _NORM, _GATE = 0, 1, 2
# Numbers a program where a row is cut.
_PIECE = 2048
_MANY_TOKENS = 1024
_WIDEST = 16384


@triton.jit  # type: ignore[untyped-decorator]
def _quantize_kernel(
    values: tl.tensor,
    scales: tl.tensor,
    x: tl.tensor,
    residual: tl.tensor,
    weight: tl.tensor,
    given_scale: tl.tensor,
    scales_stride_token: tl.tensor,
    scales_stride_group: tl.tensor,
    x_stride: tl.tensor,
    residual_stride: tl.tensor,
    size: tl.tensor,
    eps: tl.tensor,
    SOURCE: tl.constexpr,
    KIND: tl.constexpr,
    HAS_RESIDUAL: tl.constexpr,
    HAS_WEIGHT: tl.constexpr,
    HAS_SCALE: tl.constexpr,
    GROUPS: tl.constexpr,
    SIZE: tl.constexpr,
    LARGEST: tl.constexpr,
    LEAST_MAGNITUDE: tl.constexpr,
    PDL: tl.constexpr,
) -> None:
    let_later_start(PDL)
    token = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * SIZE + tl.arange(0, SIZE)
    inside = columns < size
    wait_for_earlier(PDL)
    row = x + token * x_stride + columns
    value = tl.load(row, mask=inside, other=0.0).to(tl.float32)
    if SOURCE == 1:
        if HAS_RESIDUAL:
            at = residual + token * residual_stride + columns
            total = (value + tl.load(at, mask=inside, other=0.0).to(tl.float32)).to(residual.dtype.element_ty)
            tl.store(at, total, mask=inside)
            value = total.to(tl.float32)
        value *= tl.rsqrt(tl.sum(value * value, axis=0) / size + eps)
        if HAS_WEIGHT:
            value *= tl.load(weight + columns, mask=inside, other=0.0).to(tl.float32)
    elif SOURCE == 2:
        up = tl.load(row + size, mask=inside, other=0.0).to(tl.float32)
        value = tl.where(inside, activate(value, KIND) * up, 0.0)
    # [GROUPS, inputs that share a scale]
    grouped = tl.reshape(value, [GROUPS, SIZE // GROUPS])
    if HAS_SCALE:
        scale = tl.load(given_scale) + tl.zeros([GROUPS], tl.float32)
        quotient = grouped / scale[:, None]
        quotient = tl.clamp(quotient, -LARGEST, LARGEST, propagate_nan=tl.PropagateNan.ALL)
    else:
        scale = tl.maximum(tl.max(tl.abs(grouped), axis=1), LEAST_MAGNITUDE) / LARGEST
        quotient = grouped / scale[:, None]
    group = tl.program_id(1) * GROUPS + tl.arange(0, GROUPS)
    at = scales + token * scales_stride_token + group * scales_stride_group
    tl.store(at, scale, mask=group * (SIZE // GROUPS) < size)
    narrow = tl.reshape(quotient, [SIZE]).to(values.dtype.element_ty)
    tl.store(values + token * size + columns, narrow, mask=inside)


def quantize_fp8(
    values_TI: torch.Tensor, scales_TG: torch.Tensor, x_TI: torch.Tensor, scale: torch.Tensor | None
) -> None:
    """Triton back end of `ops.quantize_fp8`."""
    check_shape("x_TI", x_TI, tuple(values_TI.shape), values_TI.device)
    check_input_scale(scale, x_TI.device)
    _check_room(values_TI, scales_TG, x_TI)
    launch_quantization(values_TI, scales_TG, x_TI, scale=scale)


def rms_norm_fp8(
    values_TI: torch.Tensor,
    scales_TG: torch.Tensor,
    x_TI: torch.Tensor,
    residual_TI: torch.Tensor | None,
    weight_I: torch.Tensor | None,
    eps: float,
) -> None:
    """Triton back end of `ops.rms_norm_fp8`."""
    check_shape("x_TI", x_TI, tuple(values_TI.shape), values_TI.device)
    other = x_TI if residual_TI is None else residual_TI
    check_norm("x_TI", x_TI, "residual_TI", other, weight_I)
    check_inner_contiguous(residual_TI=other)
    if weight_I is not None:
        check_inner_contiguous(weight_I=weight_I)
    _check_room(values_TI, scales_TG, x_TI)
    launch_quantization(
        values_TI, scales_TG, x_TI, source=_NORM, residual=residual_TI, weight=weight_I, eps=eps
    )


def gated_activation_fp8(
    values_TI: torch.Tensor, scales_TG: torch.Tensor, gate_up_TF: torch.Tensor, kind: str
) -> None:
    """Triton back end of `ops.gated_activation_fp8`."""
    tokens, size = values_TI.shape
    check_shape("gate_up_TF", gate_up_TF, (tokens, 2 * size), values_TI.device)
    _check_room(values_TI, scales_TG, gate_up_TF)
    launch_quantization(values_TI, scales_TG, gate_up_TF, source=_GATE, kind=activation_number(kind))


def _check_room(values_TI: torch.Tensor, scales_TG: torch.Tensor, x: torch.Tensor) -> None:
    check_quantized(values_TI, scales_TG)
    check_contiguous("values_TI", values_TI)
    check_inner_contiguous(x=x)


def launch_quantization(
    values_TI: torch.Tensor,
    scales_TG: torch.Tensor,
    x: torch.Tensor,
    *,
    source: int = _PLAIN,
    kind: int = 0,
    scale: torch.Tensor | None = None,
    residual: torch.Tensor | None = None,
    weight: torch.Tensor | None = None,
    eps: float = 0.0,
) -> None:
    """The kernel, for arguments that are known to fit."""
    tokens, size = values_TI.shape
    if values_TI.numel() == 0:
        return
    padded = max(GROUP, power_of_2(size))
    has_groups = scales_TG.shape[1] > 1
    if has_groups and source != _NORM:
        padded = min(padded, _PIECE)
    _quantize_kernel[(tokens, ceil_div(size, padded))](
        values_TI,
        scales_TG,
        x,
        x if residual is None else residual,
        x if weight is None else weight,
        scales_TG if scale is None else scale,
        *scales_TG.stride(),
        x.stride(0),
        0 if residual is None else residual.stride(0),
        size,
        eps,
        SOURCE=source,
        KIND=kind,
        HAS_RESIDUAL=residual is not None,
        HAS_WEIGHT=weight is not None,
        HAS_SCALE=scale is not None,
        GROUPS=padded // GROUP if has_groups else 1,
        SIZE=padded,
        LARGEST=E4M3_MAX,
        LEAST_MAGNITUDE=LEAST,
        num_warps=_num_warps(padded, tokens),
        **launch_options(x.device),
    )


def _num_warps(padded: int, tokens: int) -> int:
    """By measurement on an H200 (docs/performance.md): many rows want few warps each, few rows many."""
    most = 16 if tokens < _MANY_TOKENS or padded > _WIDEST else 8
    return min(most, max(4, padded // 512))
