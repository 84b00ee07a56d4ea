"""The kernel that multiplies e4m3 by e4m3 and applies the scales; knows nothing about how they came about."""

from __future__ import annotations

import triton
import triton.language as tl

from llm_kernels.triton.dependent_launch import let_later_start, wait_for_earlier


@triton.jit  # type: ignore[untyped-decorator]
def scaled_product_kernel(
    out: tl.tensor,
    x: tl.tensor,
    weight: tl.tensor,
    x_scales: tl.tensor,
    weight_scales: tl.tensor,
    bias: tl.tensor,
    num_tokens: tl.tensor,
    out_size: tl.tensor,
    in_size: tl.tensor,
    x_scales_stride_token: tl.tensor,
    x_scales_stride_group: tl.tensor,
    weight_scales_stride_out: tl.tensor,
    weight_scales_stride_in: tl.tensor,
    TOKEN_GROUPS: tl.constexpr,
    BLOCK_SCALES: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    EVEN_K: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP_M: tl.constexpr,
    PDL: tl.constexpr,
) -> None:
    """One tile of out = (x * x_scales) @ (weight * weight_scales).T + bias.

    With BLOCK_SCALES, BLOCK_K is the 128 inputs of a scale: each step's product is scaled, then added.
    """
    let_later_start(PDL)
    # Programs that run together share rows of x and of the weight.
    num_columns = tl.cdiv(out_size, BLOCK_N)
    num_rows = tl.cdiv(num_tokens, BLOCK_M)
    group = tl.program_id(0) // (GROUP_M * num_columns)
    within = tl.program_id(0) % (GROUP_M * num_columns)
    group_size = tl.minimum(num_rows - group * GROUP_M, GROUP_M)
    rows = (group * GROUP_M + within % group_size) * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = (within // group_size) * BLOCK_N + tl.arange(0, BLOCK_N)
    inner = tl.arange(0, BLOCK_K)
    # Rows and columns past the end repeat the first ones, so that loads need no mask for them.
    row, column = rows % num_tokens, columns % out_size
    x_at = x + row.to(tl.int64)[:, None] * in_size + inner[None, :]
    weight_at = weight + column.to(tl.int64)[None, :] * in_size + inner[:, None]
    x_scale_at = x_scales + row * x_scales_stride_token
    weight_scale_at = weight_scales + (column // 128) * weight_scales_stride_out
    wait_for_earlier(PDL)
    total = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for start in range(0, in_size, BLOCK_K):
        if EVEN_K:
            a = tl.load(x_at)
            b = tl.load(weight_at)
        else:
            left = in_size - start
            a = tl.load(x_at, mask=inner[None, :] < left, other=0.0)
            b = tl.load(weight_at, mask=inner[:, None] < left, other=0.0)
        if BLOCK_SCALES:
            scale = tl.load(weight_scale_at)[None, :]
            if TOKEN_GROUPS:
                scale = scale * tl.load(x_scale_at)[:, None]
                x_scale_at += x_scales_stride_group
            total += tl.dot(a, b) * scale
            weight_scale_at += weight_scales_stride_in
        else:
            total = tl.dot(a, b, total)
        x_at += BLOCK_K
        weight_at += BLOCK_K
    if not TOKEN_GROUPS:
        total *= tl.load(x_scale_at)[:, None]
    if not BLOCK_SCALES:
        total *= tl.load(weight_scales + column * weight_scales_stride_out)[None, :]
    if HAS_BIAS:
        total += tl.load(bias + column).to(tl.float32)[None, :]
    at = out + rows.to(tl.int64)[:, None] * out_size + columns[None, :]
    tl.store(
        at, total.to(out.dtype.element_ty), mask=(rows < num_tokens)[:, None] & (columns < out_size)[None, :]
    )
