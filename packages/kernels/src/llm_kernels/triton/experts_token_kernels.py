"""Kernels of expert MLPs for a few tokens: by rows of weights, without sorting; they read the ids."""

from __future__ import annotations

import triton
import triton.language as tl

from llm_kernels.triton.activation import activate
from llm_kernels.triton.dependent_launch import let_later_start, wait_for_earlier
from llm_kernels.triton.experts_kernels import gate_value, scale_place


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
    SCALES: tl.constexpr,
    PDL: tl.constexpr,
) -> None:
    """inner[p]: the activation of weight[ids[p]] @ x[p // TOP_K]; nothing for a pair without expert."""
    pair = tl.program_id(1)
    wait_for_earlier(PDL)
    # After the wait: then the kernel that starts early knows that the router's is complete.
    let_later_start(PDL)
    expert = tl.load(ids + pair)
    if (expert < 0) | (expert >= num_experts):
        return
    row = tl.program_id(0) * BLOCK_I + tl.arange(0, BLOCK_I)
    depth = tl.arange(0, BLOCK_K)
    safe = (row % inner_size).to(tl.int64)
    weight_at = weight + expert * weight_stride_expert + safe[:, None] * weight_stride_out + depth[None, :]
    up_offset = inner_size.to(tl.int64) * weight_stride_out
    x_at = x + (pair // TOP_K).to(tl.int64) * x_stride + depth
    # A program's rows lie in one block of 128.
    block_row = (tl.program_id(0) * BLOCK_I) % inner_size
    gate_row = block_row if SCALES == 2 else safe
    scale_at = scale_place(scale, expert, gate_row, scale_stride_expert, scale_stride_out, SCALES)
    up_row = inner_size + gate_row
    up_scale_at = scale_place(scale, expert, up_row, scale_stride_expert, scale_stride_out, SCALES)
    if ONE_PASS:
        inside = depth < in_size
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
            inside = depth < in_size - start
            w = tl.load(weight_at + start, mask=inside[None, :], other=0.0)
            w_up = tl.load(weight_at + up_offset + start, mask=inside[None, :], other=0.0) if GATED else w
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
def _token_weights(
    weight_at: tl.tensor, is_real: tl.tensor, depth: tl.tensor, inner_size: tl.tensor
) -> tl.tensor:
    """[outputs, choices, inputs]; zeros for no expert and past the end."""
    return tl.load(weight_at, mask=is_real[None, :, None] & (depth < inner_size)[None, None, :], other=0.0)


@triton.jit  # type: ignore[untyped-decorator]
def _token_product(
    w: tl.tensor,
    inner_at: tl.tensor,
    is_real: tl.tensor,
    depth: tl.tensor,
    inner_size: tl.tensor,
    scale_at: tl.tensor,
    SCALES: tl.constexpr,
) -> tl.tensor:
    """The products of weights with the choices' inner rows, not summed."""
    is_inner = is_real[:, None] & (depth < inner_size)[None, :]
    value = tl.load(inner_at, mask=is_inner, other=0.0).to(tl.float32)
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
    SCALES: tl.constexpr,
    PDL: tl.constexpr,
) -> None:
    """out[t]: the weighted sum over t's experts of weight[expert] @ inner[pair], and of zero experts.

    Weights of CHUNKS (1 to 4) pieces are read before the wait: that this kernel runs means that all programs
    of the one before are past theirs, so the ids are complete; they are read past the first cache, which may
    be stale.
    """
    token = tl.program_id(1).to(tl.int64)
    choice = tl.arange(0, K_PAD)
    pair = token * TOP_K + choice
    expert = tl.load(ids + pair, mask=choice < TOP_K, other=-1, cache_modifier=".cg")
    is_real = (expert >= 0) & (expert < num_experts)
    row = tl.program_id(0) * BLOCK_E + tl.arange(0, BLOCK_E)
    depth = tl.arange(0, BLOCK_I)
    safe = (row % size).to(tl.int64)
    weight_at = weight + expert[None, :, None] * weight_stride_expert
    weight_at = weight_at + safe[:, None, None] * weight_stride_out + depth[None, None, :]
    inner_at = inner + pair[:, None] * inner_stride + depth[None, :]
    # A program's rows lie in one block of 128. Scales are weights too: complete before the wait.
    block_row = tl.program_id(0) * BLOCK_E // 128
    scale_at = scale + expert[:, None] * scale_stride_expert + block_row * scale_stride_out
    step = BLOCK_I
    w = _token_weights(weight_at, is_real, depth, inner_size)
    if CHUNKS > 1:
        w1 = _token_weights(weight_at + step, is_real, depth + step, inner_size)
    if CHUNKS > 2:
        w2 = _token_weights(weight_at + 2 * step, is_real, depth + 2 * step, inner_size)
    if CHUNKS > 3:
        w3 = _token_weights(weight_at + 3 * step, is_real, depth + 3 * step, inner_size)
    let_later_start(PDL)
    wait_for_earlier(PDL)
    total = _token_product(w, inner_at, is_real, depth, inner_size, scale_at, SCALES)
    if CHUNKS > 1:
        at = depth + step
        total += _token_product(w1, inner_at + step, is_real, at, inner_size, scale_at, SCALES)
    if CHUNKS > 2:
        at = depth + 2 * step
        total += _token_product(w2, inner_at + 2 * step, is_real, at, inner_size, scale_at, SCALES)
    if CHUNKS > 3:
        at = depth + 3 * step
        total += _token_product(w3, inner_at + 3 * step, is_real, at, inner_size, scale_at, SCALES)
    for start in range(CHUNKS * step, inner_size, step):
        at = depth + start
        w = _token_weights(weight_at + start, is_real, at, inner_size)
        total += _token_product(w, inner_at + start, is_real, at, inner_size, scale_at, SCALES)
    outputs = tl.sum(total, axis=2)
    if SCALES == 1:
        at = scale + expert[None, :] * scale_stride_expert + safe[:, None] * scale_stride_out
        outputs *= tl.load(at, mask=is_real[None, :], other=0.0)
    share = tl.load(pair_weights + pair, mask=choice < TOP_K, other=0.0).to(tl.float32)
    if HAS_BIAS:
        bias_at = bias + expert[None, :] * bias_stride + safe[:, None]
        outputs += tl.load(bias_at, mask=is_real[None, :], other=0.0).to(tl.float32)
    if SCALED:
        outputs *= share[None, :]
    result = tl.sum(tl.where(is_real[None, :], outputs, 0.0), axis=1)
    if ZERO_EXPERTS > 0:
        is_zero = (expert >= num_experts) & (expert < num_experts + ZERO_EXPERTS)
        own = tl.load(x + token * x_stride + row, mask=row < size, other=0.0).to(tl.float32)
        result += tl.sum(tl.where(is_zero, share, 0.0), axis=0) * own
    tl.store(out + token * out_stride + row, result.to(out.dtype.element_ty), mask=row < size)
