"""Kernels of the expert ops: sort pairs by expert into blocks, multiply by block, sum a token's experts.

A pair is one (token, choice): pair p belongs to token p // K. Blocks hold BLOCK_M pairs of one expert; the
last block of an expert is filled up with the number of pairs, which is no pair.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit  # type: ignore[untyped-decorator]
def count_kernel(ids: tl.tensor, counts: tl.tensor, num_pairs: tl.tensor, CHUNK: tl.constexpr) -> None:
    """counts[e]: pairs of expert e; one program an expert."""
    expert = tl.program_id(0)
    total = tl.zeros([CHUNK], tl.int32)
    for start in range(0, num_pairs, CHUNK):
        pair = start + tl.arange(0, CHUNK)
        total += (tl.load(ids + pair, mask=pair < num_pairs, other=-1) == expert).to(tl.int32)
    tl.store(counts + expert, tl.sum(total, axis=0))


@triton.jit  # type: ignore[untyped-decorator]
def align_kernel(
    ids: tl.tensor,
    counts: tl.tensor,
    pairs: tl.tensor,
    block_experts: tl.tensor,
    num_pairs: tl.tensor,
    num_experts: tl.tensor,
    max_blocks: tl.tensor,
    COUNTED: tl.constexpr,
    N_PAD: tl.constexpr,
    CHUNK: tl.constexpr,
    BLOCK_M: tl.constexpr,
) -> None:
    """Writes one expert's blocks, in the order of its pairs; one program an expert.

    Without COUNTED one chunk holds all pairs, and each program counts for itself.
    """
    expert = tl.program_id(0)
    experts = tl.arange(0, N_PAD)
    lane = tl.arange(0, CHUNK)
    if COUNTED:
        count = tl.load(counts + experts, mask=experts < num_experts, other=0)
    else:
        given = tl.load(ids + lane, mask=lane < num_pairs, other=-1)
        count = tl.sum((given[None, :] == experts[:, None]).to(tl.int32), axis=1)
        count = tl.where(experts < num_experts, count, 0)
    blocks = (count + BLOCK_M - 1) // BLOCK_M
    first_block = tl.sum(tl.where(experts < expert, blocks, 0), axis=0)
    num_blocks = tl.sum(tl.where(experts == expert, blocks, 0), axis=0)
    num_own = tl.sum(tl.where(experts == expert, count, 0), axis=0)
    for start in range(0, num_blocks, CHUNK):
        tl.store(block_experts + first_block + start + lane, expert, mask=start + lane < num_blocks)
    if expert == num_experts - 1:
        for start in range(first_block + num_blocks, max_blocks, CHUNK):
            tl.store(block_experts + start + lane, -1, mask=start + lane < max_blocks)
    own = pairs + first_block * BLOCK_M
    filler = num_own + tl.arange(0, BLOCK_M)
    tl.store(own + filler, num_pairs, mask=filler < num_blocks * BLOCK_M)
    written = 0
    for start in range(0, num_pairs, CHUNK):
        pair = start + lane
        is_own = (tl.load(ids + pair, mask=pair < num_pairs, other=-1) == expert).to(tl.int32)
        tl.store(own + written + tl.cumsum(is_own, axis=0) - 1, pair, mask=is_own == 1)
        written += tl.sum(is_own, axis=0)


@triton.jit  # type: ignore[untyped-decorator]
def grouped_gemm_kernel(
    out: tl.tensor,
    x: tl.tensor,
    weight: tl.tensor,
    bias: tl.tensor,
    pair_weights: tl.tensor,
    pairs: tl.tensor,
    block_experts: tl.tensor,
    out_stride: tl.tensor,
    x_stride: tl.tensor,
    weight_stride_expert: tl.tensor,
    weight_stride_out: tl.tensor,
    bias_stride: tl.tensor,
    num_pairs: tl.tensor,
    num_blocks: tl.tensor,
    out_size: tl.tensor,
    in_size: tl.tensor,
    PAIRS_PER_ROW: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    SCALE: tl.constexpr,
    EVEN_K: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP_M: tl.constexpr,
    PRECISION: tl.constexpr,
) -> None:
    """out[p] = weight[expert of p] @ x[p // PAIRS_PER_ROW]; SCALE tells where the pair's weight goes in."""
    # Programs that run together share weights (blocks of one expert) and rows.
    num_tiles = tl.cdiv(out_size, BLOCK_N)
    group = tl.program_id(0) // (GROUP_M * num_tiles)
    within = tl.program_id(0) % (GROUP_M * num_tiles)
    group_size = tl.minimum(num_blocks - group * GROUP_M, GROUP_M)
    block = group * GROUP_M + within % group_size
    tile = within // group_size
    expert = tl.load(block_experts + block).to(tl.int64)
    if expert < 0:
        return
    pair = tl.load(pairs + block * BLOCK_M + tl.arange(0, BLOCK_M))
    is_pair = (pair < num_pairs)[:, None]
    column = tile * BLOCK_N + tl.arange(0, BLOCK_N)
    inner = tl.arange(0, BLOCK_K)
    x_at = x + (pair // PAIRS_PER_ROW).to(tl.int64)[:, None] * x_stride + inner[None, :]
    # Columns past the end repeat the first ones, so that the loads need no mask for them.
    weight_row = (column % out_size).to(tl.int64)[None, :] * weight_stride_out
    weight_at = weight + expert * weight_stride_expert + weight_row + inner[:, None]
    total = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for start in range(0, in_size, BLOCK_K):
        if EVEN_K:
            a = tl.load(x_at, mask=is_pair, other=0.0)
            b = tl.load(weight_at)
        else:
            left = in_size - start
            a = tl.load(x_at, mask=is_pair & (inner[None, :] < left), other=0.0)
            b = tl.load(weight_at, mask=inner[:, None] < left, other=0.0)
        total = tl.dot(a, b, total, input_precision=PRECISION)
        x_at += BLOCK_K
        weight_at += BLOCK_K
    if SCALE != "none":
        scale = tl.load(pair_weights + pair, mask=pair < num_pairs, other=0.0).to(tl.float32)[:, None]
    if SCALE == "before_bias":
        total *= scale
    if HAS_BIAS:
        total += tl.load(bias + expert * bias_stride + column % out_size).to(tl.float32)[None, :]
    if SCALE == "after_bias":
        total *= scale
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
) -> None:
    """out[t]: the sum of the outputs of t's pairs, where x[t] is the output of a zero expert."""
    token = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < size
    total = tl.zeros([BLOCK], tl.float32)
    share = 0.0
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
