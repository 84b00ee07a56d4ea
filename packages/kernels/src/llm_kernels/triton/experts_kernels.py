"""Kernels that multiply blocks of pairs by their expert's weights, and sum a token's experts.

Pairs and blocks are those of experts_sort_kernels.py. Weights come by pointers, or by a descriptor of the
matrix [N * O, I] (DESCRIPTOR), which the bulk copy engine reads.
"""

from __future__ import annotations

import triton
import triton.language as tl

from llm_kernels.triton.activation import activate
from llm_kernels.triton.dependent_launch import let_later_start, wait_for_earlier


@triton.jit  # type: ignore[untyped-decorator]
def gate_value(
    gate: tl.tensor, up: tl.tensor, KIND: tl.constexpr, LIMIT: tl.constexpr, ALPHA: tl.constexpr
) -> tl.tensor:
    """The gated activation of float32 values, as `ops.gated_activation` says."""
    if LIMIT is not None:
        gate = tl.where(gate > LIMIT, LIMIT, gate)  # keeps NaN, as torch does
        up = tl.where(up > LIMIT, LIMIT, tl.where(up < -LIMIT, -LIMIT, up))
    if ALPHA is not None:  # noqa: SIM108 - a branch of the compiler
        result = gate * tl.sigmoid(ALPHA * gate) * (up + 1.0)
    else:
        result = activate(gate, KIND) * up
    return result


@triton.jit  # type: ignore[untyped-decorator]
def _add_product(
    total: tl.tensor,
    a: tl.tensor,
    b: tl.tensor,
    scale_at: tl.tensor,
    x_scale_at: tl.tensor,
    SCALES: tl.constexpr,
    NARROW: tl.constexpr,
    PRECISION: tl.constexpr,
) -> tl.tensor:
    """Add a @ b; weights of e4m3 become numbers like `a`, and with scales a block each step is scaled."""
    if SCALES > 0 and not NARROW:
        b = b.to(a.dtype)
    if SCALES == 2:
        factor = tl.load(scale_at)[None, :]
        if NARROW:
            factor = factor * tl.load(x_scale_at)[:, None]
        total += tl.dot(a, b, input_precision=PRECISION) * factor
    else:
        total = tl.dot(a, b, total, input_precision=PRECISION)
    return total


@triton.jit  # type: ignore[untyped-decorator]
def scale_place(
    scale: tl.tensor,
    expert: tl.tensor,
    output: tl.tensor,
    stride_expert: tl.tensor,
    stride_out: tl.tensor,
    SCALES: tl.constexpr,
) -> tl.tensor:
    """Where an output's scale lies; SCALES: 0 none, 1 one an output, 2 one a block of 128 x 128."""
    return (
        scale + expert.to(tl.int64) * stride_expert + (output // 128 if SCALES == 2 else output) * stride_out
    )


@triton.jit  # type: ignore[untyped-decorator]
def _block_and_tile(num_blocks: tl.tensor, num_tiles: tl.tensor, GROUP_M: tl.constexpr) -> tl.tensor:
    """Programs that run together share weights (blocks of one expert) and rows."""
    group = tl.program_id(0) // (GROUP_M * num_tiles)
    within = tl.program_id(0) % (GROUP_M * num_tiles)
    group_size = tl.minimum(num_blocks - group * GROUP_M, GROUP_M)
    return group * GROUP_M + within % group_size, within // group_size


@triton.jit  # type: ignore[untyped-decorator]
def up_kernel(  # noqa: C901, PLR0915 - branches of the compiler
    inner: tl.tensor,
    x: tl.tensor,
    weight: tl.tensor,
    bias: tl.tensor,
    scale: tl.tensor,
    x_scales: tl.tensor,
    pair_weights: tl.tensor,
    pairs: tl.tensor,
    block_experts: tl.tensor,
    inner_stride: tl.tensor,
    x_stride: tl.tensor,
    weight_stride_expert: tl.tensor,
    weight_stride_out: tl.tensor,
    bias_stride: tl.tensor,
    scale_stride_expert: tl.tensor,
    scale_stride_out: tl.tensor,
    x_scales_stride_row: tl.tensor,
    x_scales_stride_group: tl.tensor,
    num_pairs: tl.tensor,
    num_blocks: tl.tensor,
    inner_size: tl.tensor,
    in_size: tl.tensor,
    TOP_K: tl.constexpr,
    GATED: tl.constexpr,
    KIND: tl.constexpr,
    LIMIT: tl.constexpr,
    ALPHA: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    SCALE_INPUT: tl.constexpr,
    EVEN_K: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP_M: tl.constexpr,
    PRECISION: tl.constexpr,
    DESCRIPTOR: tl.constexpr,
    SCALES: tl.constexpr,
    NARROW: tl.constexpr,
    PDL: tl.constexpr,
) -> None:
    """inner[r]: the activation of weight[expert of r] @ x[token of r]; r: a row of the sorted blocks."""
    let_later_start(PDL)
    wait_for_earlier(PDL)
    block, tile = _block_and_tile(num_blocks, tl.cdiv(inner_size, BLOCK_N), GROUP_M)
    expert = tl.load(block_experts + block)
    if expert < 0:
        return
    row = block * BLOCK_M + tl.arange(0, BLOCK_M)
    pair = tl.load(pairs + row)
    is_pair = (pair < num_pairs)[:, None]
    depth = tl.arange(0, BLOCK_K)
    token = (tl.where(pair < num_pairs, pair, 0) // TOP_K).to(tl.int64)
    x_at = x + token[:, None] * x_stride + depth[None, :]
    x_scale_at = x_scales + token * x_scales_stride_row
    column = tile * BLOCK_N + tl.arange(0, BLOCK_N)
    first_row = expert * ((1 + GATED) * inner_size) + tile * BLOCK_N
    # Columns past the end repeat the first ones, so that the loads need no mask for them.
    safe = (column % inner_size).to(tl.int64)
    if not DESCRIPTOR:
        weight_at = weight + expert.to(tl.int64) * weight_stride_expert
        weight_at += safe[None, :] * weight_stride_out + depth[:, None]
        up_offset = inner_size.to(tl.int64) * weight_stride_out
    scale_at = scale_place(scale, expert, safe, scale_stride_expert, scale_stride_out, SCALES)
    up_row = inner_size + safe
    up_scale_at = scale_place(scale, expert, up_row, scale_stride_expert, scale_stride_out, SCALES)
    total = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    if GATED:
        up_total = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for start in range(0, in_size, BLOCK_K):
        left = in_size - start
        if EVEN_K:
            a = tl.load(x_at, mask=is_pair, other=0.0)
        else:
            a = tl.load(x_at, mask=is_pair & (depth[None, :] < left), other=0.0)
        if DESCRIPTOR:
            b = weight.load([first_row, start]).T
        elif EVEN_K:
            b = tl.load(weight_at)
        else:
            b = tl.load(weight_at, mask=depth[:, None] < left, other=0.0)
        group = start // 128
        x_group_at = x_scale_at + group * x_scales_stride_group
        total = _add_product(total, a, b, scale_at + group, x_group_at, SCALES, NARROW, PRECISION)
        if GATED:
            if DESCRIPTOR:
                b_up = weight.load([first_row + inner_size, start]).T
            elif EVEN_K:
                b_up = tl.load(weight_at + up_offset)
            else:
                b_up = tl.load(weight_at + up_offset, mask=depth[:, None] < left, other=0.0)
            at = up_scale_at + group
            up_total = _add_product(up_total, a, b_up, at, x_group_at, SCALES, NARROW, PRECISION)
        x_at += BLOCK_K
        if not DESCRIPTOR:
            weight_at += BLOCK_K
    if SCALES == 1:
        total *= tl.load(scale_at)[None, :]
        if GATED:
            up_total *= tl.load(up_scale_at)[None, :]
        if NARROW:
            x_factor = tl.load(x_scale_at)[:, None]
            total *= x_factor
            if GATED:
                up_total *= x_factor
    if SCALE_INPUT:
        share = tl.load(pair_weights + pair, mask=pair < num_pairs, other=0.0).to(tl.float32)[:, None]
        total *= share
        if GATED:
            up_total *= share
    if HAS_BIAS:
        bias_at = bias + expert.to(tl.int64) * bias_stride + safe
        total += tl.load(bias_at).to(tl.float32)[None, :]
        if GATED:
            up_total += tl.load(bias_at + inner_size).to(tl.float32)[None, :]
    if GATED:  # noqa: SIM108 - a branch of the compiler
        result = gate_value(total, up_total, KIND, LIMIT, ALPHA)
    else:
        result = activate(total, KIND)
    at = inner + row.to(tl.int64)[:, None] * inner_stride + column[None, :]
    tl.store(at, result.to(inner.dtype.element_ty), mask=is_pair & (column < inner_size)[None, :])


@triton.jit  # type: ignore[untyped-decorator]
def grouped_gemm_kernel(  # noqa: PLR0915 - branches of the compiler
    out: tl.tensor,
    x: tl.tensor,
    weight: tl.tensor,
    bias: tl.tensor,
    scale: tl.tensor,
    x_scales: tl.tensor,
    pair_weights: tl.tensor,
    pairs: tl.tensor,
    block_experts: tl.tensor,
    out_stride: tl.tensor,
    x_stride: tl.tensor,
    weight_stride_expert: tl.tensor,
    weight_stride_out: tl.tensor,
    bias_stride: tl.tensor,
    scale_stride_expert: tl.tensor,
    scale_stride_out: tl.tensor,
    x_scales_stride_row: tl.tensor,
    x_scales_stride_group: tl.tensor,
    num_pairs: tl.tensor,
    num_blocks: tl.tensor,
    out_size: tl.tensor,
    in_size: tl.tensor,
    SORTED_ROWS: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    SCALED: tl.constexpr,
    EVEN_K: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP_M: tl.constexpr,
    PRECISION: tl.constexpr,
    DESCRIPTOR: tl.constexpr,
    SCALES: tl.constexpr,
    NARROW: tl.constexpr,
    PDL: tl.constexpr,
) -> None:
    """out[p] = (weight[expert of p] @ row of p + bias) * weight of p; rows lie by pair or SORTED.

    With DESCRIPTOR sorted rows come by a descriptor too; rows of blocks that hold no pair may be anything.
    NARROW rows are e4m3 and have scales, one or, where weights have one a block, one for 128 inputs; only for
    SORTED rows.
    """
    let_later_start(PDL)
    wait_for_earlier(PDL)
    block, tile = _block_and_tile(num_blocks, tl.cdiv(out_size, BLOCK_N), GROUP_M)
    expert = tl.load(block_experts + block)
    if expert < 0:
        return
    row = block * BLOCK_M + tl.arange(0, BLOCK_M)
    pair = tl.load(pairs + row)
    is_pair = (pair < num_pairs)[:, None]
    depth = tl.arange(0, BLOCK_K)
    if not (DESCRIPTOR and SORTED_ROWS):
        x_row = row if SORTED_ROWS else pair
        x_at = x + x_row.to(tl.int64)[:, None] * x_stride + depth[None, :]
    column = tile * BLOCK_N + tl.arange(0, BLOCK_N)
    safe = (column % out_size).to(tl.int64)
    if not DESCRIPTOR:
        weight_at = weight + expert.to(tl.int64) * weight_stride_expert
        weight_at += safe[None, :] * weight_stride_out + depth[:, None]
    scale_at = scale_place(scale, expert, safe, scale_stride_expert, scale_stride_out, SCALES)
    x_scale_at = x_scales + row.to(tl.int64) * x_scales_stride_row
    total = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for start in range(0, in_size, BLOCK_K):
        left = in_size - start
        if DESCRIPTOR and SORTED_ROWS:
            a = x.load([block * BLOCK_M, start])
        elif EVEN_K:
            a = tl.load(x_at, mask=is_pair, other=0.0)
        else:
            a = tl.load(x_at, mask=is_pair & (depth[None, :] < left), other=0.0)
        if not (DESCRIPTOR and SORTED_ROWS):
            x_at += BLOCK_K
        if DESCRIPTOR:
            b = weight.load([expert * out_size + tile * BLOCK_N, start]).T
        elif EVEN_K:
            b = tl.load(weight_at)
        else:
            b = tl.load(weight_at, mask=depth[:, None] < left, other=0.0)
        if not DESCRIPTOR:
            weight_at += BLOCK_K
        group = start // 128
        x_group_at = x_scale_at + group * x_scales_stride_group
        total = _add_product(total, a, b, scale_at + group, x_group_at, SCALES, NARROW, PRECISION)
    if SCALES == 1:
        total *= tl.load(scale_at)[None, :]
        if NARROW:
            total *= tl.load(x_scale_at)[:, None]
    if HAS_BIAS:
        bias_at = bias + expert.to(tl.int64) * bias_stride + safe
        total += tl.load(bias_at).to(tl.float32)[None, :]
    if SCALED:
        total *= tl.load(pair_weights + pair, mask=pair < num_pairs, other=0.0).to(tl.float32)[:, None]
    at = out + pair.to(tl.int64)[:, None] * out_stride + column[None, :]
    tl.store(at, total.to(out.dtype.element_ty), mask=is_pair & (column < out_size)[None, :])


@triton.jit  # type: ignore[untyped-decorator]
def combine_kernel(
    out: tl.tensor,
    pair_outputs: tl.tensor,
    x: tl.tensor,
    ids: tl.tensor,
    pair_weights: tl.tensor,
    out_stride: tl.tensor,
    pair_stride: tl.tensor,
    x_stride: tl.tensor,
    num_experts: tl.tensor,
    size: tl.tensor,
    ZERO_EXPERTS: tl.constexpr,
    K: tl.constexpr,
    BLOCK: tl.constexpr,
    PDL: tl.constexpr,
) -> None:
    """out[t]: the sum of the outputs of t's pairs, where x[t] is the output of a zero expert."""
    token = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < size
    total = tl.zeros([BLOCK], tl.float32)
    share = 0.0
    let_later_start(PDL)
    wait_for_earlier(PDL)
    for choice in tl.static_range(K):
        pair = token * K + choice
        expert = tl.load(ids + pair)
        is_real = (expert >= 0) & (expert < num_experts)
        at = pair_outputs + pair * pair_stride + column
        total += tl.load(at, mask=inside & is_real, other=0.0).to(tl.float32)
        if ZERO_EXPERTS > 0:
            is_zero = (expert >= num_experts) & (expert < num_experts + ZERO_EXPERTS)
            share += tl.where(is_zero, tl.load(pair_weights + pair).to(tl.float32), 0.0)
    if ZERO_EXPERTS > 0:
        total += share * tl.load(x + token * x_stride + column, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + token * out_stride + column, total.to(out.dtype.element_ty), mask=inside)
