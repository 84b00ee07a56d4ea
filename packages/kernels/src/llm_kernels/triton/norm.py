"""RMS and layer norms in Triton; knows nothing about models."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from llm_kernels.checks import check_inner_contiguous, check_layer_norm, check_norm
from llm_kernels.triton.dependent_launch import launch_options, let_later_start, wait_for_earlier
from llm_kernels.triton.launch_sizes import ceil_div, power_of_2

_ELEMENTS_PER_PROGRAM = 1024
_ELEMENTS_PER_THREAD = 8


@triton.jit(do_not_specialize=["num_rows"])  # type: ignore[untyped-decorator]
def _norm_kernel(
    out: tl.tensor,
    x: tl.tensor,
    residual: tl.tensor,
    weight: tl.tensor,
    bias: tl.tensor,
    out_stride_outer: tl.tensor,
    out_stride_inner: tl.tensor,
    x_stride_outer: tl.tensor,
    x_stride_inner: tl.tensor,
    residual_stride_outer: tl.tensor,
    residual_stride_inner: tl.tensor,
    weight_stride_inner: tl.tensor,
    bias_stride_inner: tl.tensor,
    num_rows: tl.tensor,
    num_inner: tl.tensor,
    size: tl.tensor,
    eps: tl.tensor,
    CENTRED: tl.constexpr,
    HAS_RESIDUAL: tl.constexpr,
    WEIGHT_DIMS: tl.constexpr,
    BIAS_DIMS: tl.constexpr,
    ROWS: tl.constexpr,
    SIZE: tl.constexpr,
    PDL: tl.constexpr,
) -> None:
    let_later_start(PDL)
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    outer = (rows // num_inner).to(tl.int64)[:, None]
    inner = (rows % num_inner).to(tl.int64)[:, None]
    columns = tl.arange(0, SIZE)[None, :]
    inside = (rows < num_rows)[:, None] & (columns < size)
    # The factors are weights: no kernel of the step writes them. One row for all heads (1), one a head (2),
    # or none (0).
    if WEIGHT_DIMS == 1:
        factor = tl.load(weight + columns, mask=columns < size, other=0.0).to(tl.float32)
    elif WEIGHT_DIMS == 2:
        factor = tl.load(weight + inner * weight_stride_inner + columns, mask=inside, other=0.0)
        factor = factor.to(tl.float32)
    if BIAS_DIMS == 1:
        shift = tl.load(bias + columns, mask=columns < size, other=0.0).to(tl.float32)
    elif BIAS_DIMS == 2:
        shift = tl.load(bias + inner * bias_stride_inner + columns, mask=inside, other=0.0).to(tl.float32)
    wait_for_earlier(PDL)
    value = tl.load(x + outer * x_stride_outer + inner * x_stride_inner + columns, mask=inside, other=0.0)
    value = value.to(tl.float32)
    if HAS_RESIDUAL:
        at = residual + outer * residual_stride_outer + inner * residual_stride_inner + columns
        total = (value + tl.load(at, mask=inside, other=0.0).to(tl.float32)).to(residual.dtype.element_ty)
        tl.store(at, total, mask=inside)
        value = total.to(tl.float32)
    if CENTRED:
        # Twice over the row in registers: the difference of two large sums would cancel.
        mean = tl.sum(value, axis=1)[:, None] / size
        value = tl.where(inside, value - mean, 0.0)
    result = value * tl.rsqrt(tl.sum(value * value, axis=1) / size + eps)[:, None]
    if WEIGHT_DIMS > 0:
        result *= factor
    if BIAS_DIMS > 0:
        result += shift
    at = out + outer * out_stride_outer + inner * out_stride_inner + columns
    tl.store(at, result.to(out.dtype.element_ty), mask=inside)


def rms_norm(out: torch.Tensor, x: torch.Tensor, weight: torch.Tensor | None, eps: float) -> None:
    """Triton back end of `ops.rms_norm`."""
    check_norm("x", x, "out", out, weight)
    check_inner_contiguous(x=x, out=out)
    _launch(out, x, None, weight, None, eps, centred=False)


def fused_add_rms_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor | None, eps: float
) -> None:
    """Triton back end of `ops.fused_add_rms_norm`."""
    check_norm("x", x, "residual", residual, weight)
    check_inner_contiguous(x=x, residual=residual)
    _launch(x, x, residual, weight, None, eps, centred=False)


def layer_norm(
    out: torch.Tensor, x: torch.Tensor, weight: torch.Tensor | None, bias: torch.Tensor | None, eps: float
) -> None:
    """Triton back end of `ops.layer_norm`."""
    check_layer_norm("x", x, "out", out, weight, bias)
    check_inner_contiguous(x=x, out=out)
    _launch(out, x, None, weight, bias, eps, centred=True)


def fused_add_layer_norm(
    x: torch.Tensor,
    residual: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    eps: float,
) -> None:
    """Triton back end of `ops.fused_add_layer_norm`."""
    check_layer_norm("x", x, "residual", residual, weight, bias)
    check_inner_contiguous(x=x, residual=residual)
    _launch(x, x, residual, weight, bias, eps, centred=True)


def _launch(
    out: torch.Tensor,
    x: torch.Tensor,
    residual: torch.Tensor | None,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    eps: float,
    *,
    centred: bool,
) -> None:
    size = x.shape[-1]
    num_inner = x.shape[1] if x.ndim == 3 else 1
    num_rows = x.shape[0] * num_inner
    if num_rows == 0:
        return
    padded = power_of_2(size)
    rows = max(1, min(16, _ELEMENTS_PER_PROGRAM // padded))
    _norm_kernel[(ceil_div(num_rows, rows),)](
        out,
        x,
        x if residual is None else residual,
        x if weight is None else weight,
        x if bias is None else bias,
        *_strides(out),
        *_strides(x),
        *_strides(x if residual is None else residual),
        _factor_stride("weight", weight),
        _factor_stride("bias", bias),
        num_rows,
        num_inner,
        size,
        eps,
        CENTRED=centred,
        HAS_RESIDUAL=residual is not None,
        WEIGHT_DIMS=0 if weight is None else weight.ndim,
        BIAS_DIMS=0 if bias is None else bias.ndim,
        ROWS=rows,
        SIZE=padded,
        num_warps=num_warps(rows, padded),
        **launch_options(x.device),
    )


def num_warps(rows: int, padded: int) -> int:
    """Warps of a program over so many rows of a (padded) size: as many as keep each thread's share small."""
    return max(1, min(16, rows * padded // (32 * _ELEMENTS_PER_THREAD)))


def _strides(x: torch.Tensor) -> tuple[int, int]:
    return x.stride(0), x.stride(1) if x.ndim == 3 else 0


def _factor_stride(field: str, factor: torch.Tensor | None) -> int:
    if factor is None:
        return 0
    check_inner_contiguous(**{field: factor})
    return factor.stride(0) if factor.ndim == 2 else 0
