"""The online softmax of the attention kernels in Triton, over runs of keys; knows nothing of grids or rows.

Scores are kept in powers of two: exp2 is what the hardware has.
"""

from __future__ import annotations

import triton
import triton.language as tl

LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit  # type: ignore[untyped-decorator]
def rows_of(
    cache: tl.tensor,
    table: tl.tensor,
    token: tl.tensor,
    inside: tl.tensor,
    head: tl.tensor,
    stride_block: tl.tensor,
    stride_token: tl.tensor,
    stride_head: tl.tensor,
    BLOCK_SIZE: tl.constexpr,
    IS_PAGED: tl.constexpr,
) -> tl.tensor:
    """Pointers to the vectors of the tokens [BLOCK_N] under one KV head."""
    if not IS_PAGED:
        return cache + token.to(tl.int64) * stride_token + head * stride_head
    block = tl.load(table + token // BLOCK_SIZE, mask=inside, other=0).to(tl.int64)
    return cache + block * stride_block + (token % BLOCK_SIZE) * stride_token + head * stride_head


@triton.jit  # type: ignore[untyped-decorator]
def shape_scores(
    scores: tl.tensor, scale: tl.tensor, soft_cap: tl.tensor, HAS_SOFT_CAP: tl.constexpr
) -> tl.tensor:
    """Scaled and capped scores, in powers of two."""
    if HAS_SOFT_CAP:
        capped = soft_cap * (2.0 * tl.sigmoid(2.0 * scores * scale / soft_cap) - 1.0)
        return capped * LOG2_E
    return scores * (scale * LOG2_E)


@triton.jit  # type: ignore[untyped-decorator]
def start_softmax(
    sinks: tl.tensor,
    head: tl.tensor,
    valid: tl.tensor,
    BLOCK_M: tl.constexpr,
    V_PAD: tl.constexpr,
    HAS_SINKS: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:
    """The state of the online softmax before any key: total [M, V_PAD], maximum [M], weight [M].

    A sink is a key of score `sink` whose value is 0.
    """
    total = tl.zeros([BLOCK_M, V_PAD], dtype=tl.float32)
    if HAS_SINKS:
        maximum = tl.load(sinks + head, mask=valid, other=0.0).to(tl.float32) * LOG2_E
        return total, maximum, tl.full([BLOCK_M], 1.0, dtype=tl.float32)
    return (
        total,
        tl.full([BLOCK_M], float("-inf"), dtype=tl.float32),
        tl.zeros([BLOCK_M], dtype=tl.float32),
    )


@triton.jit  # type: ignore[untyped-decorator]
def attend_keys(
    total: tl.tensor,
    maximum: tl.tensor,
    weight: tl.tensor,
    query: tl.tensor,
    position: tl.tensor,
    lowest: tl.tensor,
    highest: tl.tensor,
    slope: tl.tensor,
    key_cache: tl.tensor,
    value_cache: tl.tensor,
    table: tl.tensor,
    kv_head: tl.tensor,
    key_begin: tl.tensor,
    key_end: tl.tensor,
    key_stride_block: tl.tensor,
    key_stride_token: tl.tensor,
    key_stride_head: tl.tensor,
    value_stride_block: tl.tensor,
    value_stride_token: tl.tensor,
    value_stride_head: tl.tensor,
    scale: tl.tensor,
    soft_cap: tl.tensor,
    D: tl.constexpr,
    D_PAD: tl.constexpr,
    V: tl.constexpr,
    V_PAD: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    IS_PAGED: tl.constexpr,
    HAS_SOFT_CAP: tl.constexpr,
    HAS_ALIBI: tl.constexpr,
    PRECISION: tl.constexpr,
    IS_MASKED: tl.constexpr,
    HAS_LOWEST: tl.constexpr,
    HAS_HIGHEST: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:
    """Online softmax over the keys [key_begin, key_end): total [M, V_PAD], maximum [M], weight [M].

    A row at `position` [M] sees the keys of the range from `lowest` [M] to `highest` [M], as far as there are
    these bounds. Without IS_MASKED every row sees every key, and the range is a whole number of blocks of
    BLOCK_N: the comparisons and selections fall away.
    """
    columns = tl.arange(0, D_PAD)
    value_columns = tl.arange(0, V_PAD)
    for start in range(key_begin, key_end, BLOCK_N):
        token = start + tl.arange(0, BLOCK_N)
        inside = token < key_end
        key_row = rows_of(
            key_cache,
            table,
            token,
            inside,
            kv_head,
            key_stride_block,
            key_stride_token,
            key_stride_head,
            BLOCK_SIZE,
            IS_PAGED,
        )
        value_row = rows_of(
            value_cache,
            table,
            token,
            inside,
            kv_head,
            value_stride_block,
            value_stride_token,
            value_stride_head,
            BLOCK_SIZE,
            IS_PAGED,
        )
        if IS_MASKED or D != D_PAD:
            held = (columns < D)[:, None] & inside[None, :]
            key = tl.load(key_row[None, :] + columns[:, None], mask=held, other=0.0)
        else:
            key = tl.load(key_row[None, :] + columns[:, None])
        if IS_MASKED or V != V_PAD:
            held = inside[:, None] & (value_columns < V)[None, :]
            value = tl.load(value_row[:, None] + value_columns[None, :], mask=held, other=0.0)
        else:
            value = tl.load(value_row[:, None] + value_columns[None, :])
        scores = tl.dot(query, key.to(query.dtype), input_precision=PRECISION)
        scores = shape_scores(scores, scale, soft_cap, HAS_SOFT_CAP)
        if HAS_ALIBI:
            distance = tl.abs(position[:, None] - token[None, :]).to(tl.float32)
            scores -= (slope * LOG2_E)[:, None] * distance
        if IS_MASKED:
            seen = inside[None, :]
            if HAS_HIGHEST:
                seen = seen & (token[None, :] <= highest[:, None])
            if HAS_LOWEST:
                seen = seen & (token[None, :] >= lowest[:, None])
            scores = tl.where(seen, scores, float("-inf"))
        new_maximum = tl.maximum(maximum, tl.max(scores, axis=1))
        # A row that has seen no key yet keeps -inf; 0 stands in so that no difference is NaN.
        shift = tl.where(new_maximum == float("-inf"), 0.0, new_maximum) if IS_MASKED else new_maximum
        weights = tl.exp2(scores - shift[:, None])
        fade = tl.exp2(maximum - shift)
        weight = weight * fade + tl.sum(weights, axis=1)
        total = total * fade[:, None]
        total += tl.dot(weights.to(query.dtype), value.to(query.dtype), input_precision=PRECISION)
        maximum = new_maximum
    return total, maximum, weight
