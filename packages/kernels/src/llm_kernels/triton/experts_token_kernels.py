"""Kernels of expert MLPs for a few tokens: by rows of weights, without sorting; they read the ids.

A program goes through several pieces of work, so that the rows of the next ones are under way meanwhile.
"""

from __future__ import annotations

import triton
import triton.language as tl

from llm_kernels.triton.activation import activate
from llm_kernels.triton.dependent_launch import let_later_start, wait_for_earlier
from llm_kernels.triton.experts_kernels import gate_value, scale_place


@triton.jit  # type: ignore[untyped-decorator]
def _prefetch(address: tl.tensor) -> tl.tensor:
    """Asks for the 128 bytes at each address, into the second cache."""
    return tl.inline_asm_elementwise(
        "prefetch.global.L2 [$1]; mov.b32 $0, 0;", "=r,l", [address], dtype=tl.int32, is_pure=False, pack=1
    )


@triton.jit  # type: ignore[untyped-decorator]
def token_up_kernel(  # noqa: PLR0915 - branches of the compiler
    inner: tl.tensor,
    x: tl.tensor,
    weight: tl.tensor,
    bias: tl.tensor,
    scale: tl.tensor,
    pair_weights: tl.tensor,
    ids: tl.tensor,
    inner_stride: tl.tensor,
    x_stride: tl.tensor,
    weight_stride_expert: tl.tensor,
    weight_stride_out: tl.tensor,
    bias_stride: tl.tensor,
    scale_stride_expert: tl.tensor,
    scale_stride_out: tl.tensor,
    num_pairs: tl.tensor,
    num_experts: tl.tensor,
    inner_size: tl.tensor,
    in_size: tl.tensor,
    TOP_K: tl.constexpr,
    GATED: tl.constexpr,
    KIND: tl.constexpr,
    LIMIT: tl.constexpr,
    ALPHA: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    SCALE_INPUT: tl.constexpr,
    BLOCK_I: tl.constexpr,
    BLOCK_K: tl.constexpr,
    ONE_PASS: tl.constexpr,
    STAGES: tl.constexpr,
    SCALES: tl.constexpr,
    PDL: tl.constexpr,
) -> None:
    """inner[p]: the activation of weight[ids[p]] @ x[p // TOP_K]; a pair without expert: of zeros."""
    depth = tl.arange(0, BLOCK_K)
    num_tiles = tl.cdiv(inner_size, BLOCK_I)
    up_offset = inner_size.to(tl.int64) * weight_stride_out
    wait_for_earlier(PDL)
    # After the wait: then the kernel that starts early knows that the router's is complete.
    let_later_start(PDL)
    for task in tl.range(tl.program_id(0), num_pairs * num_tiles, tl.num_programs(0), num_stages=STAGES):
        pair = task // num_tiles
        first_row = (task % num_tiles) * BLOCK_I
        given = tl.load(ids + pair)
        is_real = (given >= 0) & (given < num_experts)
        expert = tl.where(is_real, given, 0)
        row = first_row + tl.arange(0, BLOCK_I)
        safe = (row % inner_size).to(tl.int64)
        weight_at = weight + expert * weight_stride_expert + safe[:, None] * weight_stride_out
        weight_at += depth[None, :]
        x_at = x + (pair // TOP_K).to(tl.int64) * x_stride + depth
        # The rows lie in one block of 128.
        gate_row = first_row if SCALES == 2 else safe
        scale_at = scale_place(scale, expert, gate_row, scale_stride_expert, scale_stride_out, SCALES)
        up_row = inner_size + gate_row
        up_scale_at = scale_place(scale, expert, up_row, scale_stride_expert, scale_stride_out, SCALES)
        if ONE_PASS:
            inside = is_real & (depth < in_size)
            w = tl.load(weight_at, mask=inside[None, :], other=0.0)
            w_up = tl.load(weight_at + up_offset, mask=inside[None, :], other=0.0) if GATED else w
            value = tl.load(x_at, mask=inside, other=0.0).to(tl.float32)
            up_value = value
            if SCALES == 2:
                value = value * tl.load(scale_at + depth // 128, mask=inside, other=0.0)
                if GATED:
                    up_value = up_value * tl.load(up_scale_at + depth // 128, mask=inside, other=0.0)
            gate = tl.sum(w.to(tl.float32) * value[None, :], axis=1)
            up = tl.sum(w_up.to(tl.float32) * up_value[None, :], axis=1) if GATED else gate
        else:
            total = tl.zeros([BLOCK_I, BLOCK_K], tl.float32)
            up_total = tl.zeros([BLOCK_I, BLOCK_K], tl.float32)
            for start in range(0, in_size, BLOCK_K):
                inside = is_real & (depth < in_size - start)
                w = tl.load(weight_at + start, mask=inside[None, :], other=0.0)
                at = weight_at + up_offset + start
                w_up = tl.load(at, mask=inside[None, :], other=0.0) if GATED else w
                value = tl.load(x_at + start, mask=inside, other=0.0).to(tl.float32)
                up_value = value
                if SCALES == 2:
                    block = (start + depth) // 128
                    value = value * tl.load(scale_at + block, mask=inside, other=0.0)
                    if GATED:
                        up_value = up_value * tl.load(up_scale_at + block, mask=inside, other=0.0)
                total += w.to(tl.float32) * value[None, :]
                up_total += w_up.to(tl.float32) * up_value[None, :]
            gate = tl.sum(total, axis=1)
            up = tl.sum(up_total, axis=1)
        if SCALES == 1:
            gate *= tl.load(scale_at)
            if GATED:
                up *= tl.load(up_scale_at)
        if SCALE_INPUT:
            share = tl.load(pair_weights + pair).to(tl.float32)
            gate *= share
            up *= share
        if HAS_BIAS:
            bias_at = bias + expert * bias_stride + safe
            gate += tl.load(bias_at).to(tl.float32)
            if GATED:
                up += tl.load(bias_at + inner_size).to(tl.float32)
        if GATED:  # noqa: SIM108 - a branch of the compiler
            result = gate_value(gate, up, KIND, LIMIT, ALPHA)
        else:
            result = activate(gate, KIND)
        at = inner + pair.to(tl.int64) * inner_stride + row
        tl.store(at, result.to(inner.dtype.element_ty), mask=row < inner_size)


@triton.jit  # type: ignore[untyped-decorator]
def _token_values(
    inner_at: tl.tensor, is_real: tl.tensor, depth: tl.tensor, inner_size: tl.tensor
) -> tl.tensor:
    """[choices, inputs]; zeros for no expert and past the end."""
    return tl.load(inner_at, mask=is_real[:, None] & (depth < inner_size)[None, :], other=0.0)


@triton.jit  # type: ignore[untyped-decorator]
def _token_product(
    weight_at: tl.tensor,
    value: tl.tensor,
    is_real: tl.tensor,
    depth: tl.tensor,
    inner_size: tl.tensor,
    scale_at: tl.tensor,
    SCALES: tl.constexpr,
) -> tl.tensor:
    """The products of weights [outputs, choices, inputs] with the choices' inner rows, not summed."""
    is_inner = is_real[:, None] & (depth < inner_size)[None, :]
    w = tl.load(weight_at, mask=is_inner[None, :, :], other=0.0)
    value = value.to(tl.float32)
    if SCALES == 2:
        value *= tl.load(scale_at + (depth // 128)[None, :], mask=is_inner, other=0.0)
    return w.to(tl.float32) * value[None, :, :]


@triton.jit  # type: ignore[untyped-decorator]
def token_down_kernel(  # noqa: PLR0915 - branches of the compiler
    out: tl.tensor,
    inner: tl.tensor,
    weight: tl.tensor,
    bias: tl.tensor,
    scale: tl.tensor,
    pair_weights: tl.tensor,
    ids: tl.tensor,
    x: tl.tensor,
    out_stride: tl.tensor,
    inner_stride: tl.tensor,
    weight_stride_expert: tl.tensor,
    weight_stride_out: tl.tensor,
    bias_stride: tl.tensor,
    scale_stride_expert: tl.tensor,
    scale_stride_out: tl.tensor,
    x_stride: tl.tensor,
    num_experts: tl.tensor,
    size: tl.tensor,
    inner_size: tl.tensor,
    TOP_K: tl.constexpr,
    ZERO_EXPERTS: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    SCALED: tl.constexpr,
    BLOCK_E: tl.constexpr,
    K_PAD: tl.constexpr,
    BLOCK_I: tl.constexpr,
    CHUNKS: tl.constexpr,
    IS_WIDER: tl.constexpr,
    STAGES: tl.constexpr,
    LINES: tl.constexpr,
    SCALES: tl.constexpr,
    PDL: tl.constexpr,
) -> None:
    """out[t]: the weighted sum over t's experts of weight[expert] @ inner[pair], and of zero experts.

    A row is taken in CHUNKS (1 to 4) pieces, and IS_WIDER where they do not cover it. Before the wait its
    weights are asked for, LINES of 128 bytes a row (0: not). That this kernel runs means
    that all programs of the one before are past their wait, so the ids are complete; they are read past the
    first cache, which may be stale.
    """
    token = tl.program_id(1).to(tl.int64)
    choice = tl.arange(0, K_PAD)
    pair = token * TOP_K + choice
    given = tl.load(ids + pair, mask=choice < TOP_K, other=-1, cache_modifier=".cg")
    is_real = (given >= 0) & (given < num_experts)
    expert = tl.where(is_real, given, 0)
    depth = tl.arange(0, BLOCK_I)
    num_tiles = tl.cdiv(size, BLOCK_E)
    experts_at = weight + expert * weight_stride_expert
    if PDL and LINES > 0:
        # Lines past a row's end ask for its first one again, rows of no expert for those of the first.
        line = tl.arange(0, LINES) * (128 // (weight.dtype.element_ty.primitive_bitwidth // 8))
        line = tl.where(line < inner_size, line, 0)
        for tile in range(tl.program_id(0), num_tiles, tl.num_programs(0)):
            row = (tile * BLOCK_E + tl.arange(0, BLOCK_E)) % size
            at = experts_at[None, :, None] + row.to(tl.int64)[:, None, None] * weight_stride_out
            _prefetch((at + line[None, None, :]).to(tl.int64))
    let_later_start(PDL)
    wait_for_earlier(PDL)
    inner_at = inner + pair[:, None] * inner_stride + depth[None, :]
    step = BLOCK_I
    value = _token_values(inner_at, is_real, depth, inner_size)
    if CHUNKS > 1:
        value1 = _token_values(inner_at + step, is_real, depth + step, inner_size)
    if CHUNKS > 2:
        value2 = _token_values(inner_at + 2 * step, is_real, depth + 2 * step, inner_size)
    if CHUNKS > 3:
        value3 = _token_values(inner_at + 3 * step, is_real, depth + 3 * step, inner_size)
    share = tl.load(pair_weights + pair, mask=choice < TOP_K, other=0.0).to(tl.float32)
    for tile in tl.range(tl.program_id(0), num_tiles, tl.num_programs(0), num_stages=STAGES):
        row = tile * BLOCK_E + tl.arange(0, BLOCK_E)
        safe = (row % size).to(tl.int64)
        weight_at = experts_at[None, :, None] + safe[:, None, None] * weight_stride_out
        weight_at = weight_at + depth[None, None, :]
        # The rows lie in one block of 128.
        block_row = tile * BLOCK_E // 128
        scale_at = scale + expert[:, None] * scale_stride_expert + block_row * scale_stride_out
        total = _token_product(weight_at, value, is_real, depth, inner_size, scale_at, SCALES)
        if CHUNKS > 1:
            at = depth + step
            total += _token_product(weight_at + step, value1, is_real, at, inner_size, scale_at, SCALES)
        if CHUNKS > 2:
            at = depth + 2 * step
            total += _token_product(weight_at + 2 * step, value2, is_real, at, inner_size, scale_at, SCALES)
        if CHUNKS > 3:
            at = depth + 3 * step
            total += _token_product(weight_at + 3 * step, value3, is_real, at, inner_size, scale_at, SCALES)
        if IS_WIDER:
            for start in range(CHUNKS * step, inner_size, step):
                at = depth + start
                late = _token_values(inner_at + start, is_real, at, inner_size)
                total += _token_product(weight_at + start, late, is_real, at, inner_size, scale_at, SCALES)
        outputs = tl.sum(total, axis=2)
        if SCALES == 1:
            at = scale + expert[None, :] * scale_stride_expert + safe[:, None] * scale_stride_out
            outputs *= tl.load(at, mask=is_real[None, :], other=0.0)
        if HAS_BIAS:
            bias_at = bias + expert[None, :] * bias_stride + safe[:, None]
            outputs += tl.load(bias_at, mask=is_real[None, :], other=0.0).to(tl.float32)
        if SCALED:
            outputs *= share[None, :]
        result = tl.sum(tl.where(is_real[None, :], outputs, 0.0), axis=1)
        if ZERO_EXPERTS > 0:
            is_zero = (given >= num_experts) & (given < num_experts + ZERO_EXPERTS)
            own = tl.load(x + token * x_stride + row, mask=row < size, other=0.0).to(tl.float32)
            result += tl.sum(tl.where(is_zero, share, 0.0), axis=0) * own
        tl.store(out + token * out_stride + row, result.to(out.dtype.element_ty), mask=row < size)
