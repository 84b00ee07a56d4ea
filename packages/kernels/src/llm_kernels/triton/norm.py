"""RMS norms in Triton; knows nothing about models."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from llm_kernels.checks import check_inner_contiguous, check_norm

_ELEMENTS_PER_PROGRAM = 1024


@triton.jit  # type: ignore[untyped-decorator]
def _rms_norm_kernel(
    out: tl.tensor,
    x: tl.tensor,
    residual: tl.tensor,
    weight: tl.tensor,
    out_stride_outer: tl.tensor,
    out_stride_inner: tl.tensor,
    x_stride_outer: tl.tensor,
    x_stride_inner: tl.tensor,
    residual_stride_outer: tl.tensor,
    residual_stride_inner: tl.tensor,
    num_rows: tl.tensor,
    num_inner: tl.tensor,
    size: tl.tensor,
    eps: tl.tensor,
    HAS_RESIDUAL: tl.constexpr,
    ROWS: tl.constexpr,
    SIZE: tl.constexpr,
) -> None:
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    outer = (rows // num_inner).to(tl.int64)[:, None]
    inner = (rows % num_inner).to(tl.int64)[:, None]
    columns = tl.arange(0, SIZE)[None, :]
    inside = (rows < num_rows)[:, None] & (columns < size)
    value = tl.load(x + outer * x_stride_outer + inner * x_stride_inner + columns, mask=inside, other=0.0)
    value = value.to(tl.float32)
    if HAS_RESIDUAL:
        at = residual + outer * residual_stride_outer + inner * residual_stride_inner + columns
        total = (value + tl.load(at, mask=inside, other=0.0).to(tl.float32)).to(residual.dtype.element_ty)
        tl.store(at, total, mask=inside)
        value = total.to(tl.float32)
    scale = tl.rsqrt(tl.sum(value * value, axis=1) / size + eps)[:, None]
    factor = tl.load(weight + columns, mask=columns < size, other=0.0).to(tl.float32)
    result = (value * scale * factor).to(out.dtype.element_ty)
    tl.store(out + outer * out_stride_outer + inner * out_stride_inner + columns, result, mask=inside)


def rms_norm(out: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, eps: float) -> None:
    """Triton back end of `ops.rms_norm`."""
    check_norm("x", x, "out", out, weight)
    check_inner_contiguous(x=x, out=out, weight=weight)
    _launch(out, x, None, weight, eps)


def fused_add_rms_norm(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float) -> None:
    """Triton back end of `ops.fused_add_rms_norm`."""
    check_norm("x", x, "residual", residual, weight)
    check_inner_contiguous(x=x, residual=residual, weight=weight)
    _launch(x, x, residual, weight, eps)


def _launch(
    out: torch.Tensor, x: torch.Tensor, residual: torch.Tensor | None, weight: torch.Tensor, eps: float
) -> None:
    size = x.shape[-1]
    num_inner = x.shape[1] if x.ndim == 3 else 1
    num_rows = x.shape[0] * num_inner
    if num_rows == 0:
        return
    padded = triton.next_power_of_2(size)
    rows = max(1, min(16, _ELEMENTS_PER_PROGRAM // padded))
    _rms_norm_kernel[(triton.cdiv(num_rows, rows),)](
        out,
        x,
        x if residual is None else residual,
        weight,
        *_strides(out),
        *_strides(x),
        *_strides(x if residual is None else residual),
        num_rows,
        num_inner,
        size,
        eps,
        HAS_RESIDUAL=residual is not None,
        ROWS=rows,
        SIZE=padded,
        num_warps=4 if padded <= 4096 else 8,
    )


def _strides(x: torch.Tensor) -> tuple[int, int]:
    return x.stride(0), x.stride(1) if x.ndim == 3 else 0
