"""The online softmax of batch-invariant attention in Triton: tiles, segments and how these are merged.

A query's keys are cut at fixed positions of the sequence, into segments and tiles of these. Each segment has
an online softmax of its own, and segments are merged from the first to the last. Tiles that a query does not
see leave its state as it is.
"""

from __future__ import annotations

import triton
import triton.language as tl

from llm_kernels.triton.attention_softmax import LOG2_E, rows_of, shape_scores


@triton.jit  # type: ignore[untyped-decorator]
def merge(
    total: tl.tensor,
    maximum: tl.tensor,
    weight: tl.tensor,
    other_total: tl.tensor,
    other_maximum: tl.tensor,
    other_weight: tl.tensor,
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:
    """The state of an online softmax after a segment: totals [M, V], maxima and weights [M]."""
    new_maximum = tl.maximum(maximum, other_maximum)
    shift = tl.where(new_maximum == float("-inf"), 0.0, new_maximum)
    fade = tl.exp2(maximum - shift)
    share = tl.exp2(other_maximum - shift)
    total = total * fade[:, None] + other_total * share[:, None]
    return total, new_maximum, weight * fade + other_weight * share


@triton.jit  # type: ignore[untyped-decorator]
def attend_tile(
    total: tl.tensor,
    maximum: tl.tensor,
    weight: tl.tensor,
    query: tl.tensor,
    position: tl.tensor,
    lowest: tl.tensor,
    slope: tl.tensor,
    key_cache: tl.tensor,
    value_cache: tl.tensor,
    table: tl.tensor,
    kv_head: tl.tensor,
    start: tl.tensor,
    readable_from: tl.tensor,
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
    HAS_SOFT_CAP: tl.constexpr,
    HAS_ALIBI: tl.constexpr,
    PRECISION: tl.constexpr,
    IS_MASKED: tl.constexpr,
    HAS_LOWEST: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:
    """A step of the online softmax over the keys [start, start + BLOCK_N), as far as a row sees them.

    With IS_MASKED a row at `position` [M] sees keys up to its own and, with HAS_LOWEST, from `lowest` [M] on,
    and nothing outside [readable_from, key_end) is read. Without it every row sees every key of the tile.
    """
    columns = tl.arange(0, D_PAD)
    value_columns = tl.arange(0, V_PAD)
    token = start + tl.arange(0, BLOCK_N)
    inside = token < key_end
    if HAS_LOWEST:
        inside = inside & (token >= readable_from)
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
        True,
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
        True,
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
        distance = (position[:, None] - token[None, :]).to(tl.float32)
        scores -= (slope * LOG2_E)[:, None] * distance
    if IS_MASKED:
        seen = inside[None, :] & (token[None, :] <= position[:, None])
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
    return total, new_maximum, weight


@triton.jit  # type: ignore[untyped-decorator]
def attend_run(
    total: tl.tensor,
    maximum: tl.tensor,
    weight: tl.tensor,
    segment_total: tl.tensor,
    segment_maximum: tl.tensor,
    segment_weight: tl.tensor,
    query: tl.tensor,
    position: tl.tensor,
    lowest: tl.tensor,
    slope: tl.tensor,
    key_cache: tl.tensor,
    value_cache: tl.tensor,
    table: tl.tensor,
    kv_head: tl.tensor,
    key_begin: tl.tensor,
    run_end: tl.tensor,
    readable_from: tl.tensor,
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
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    SEGMENT: tl.constexpr,
    MERGES: tl.constexpr,
    HAS_SOFT_CAP: tl.constexpr,
    HAS_ALIBI: tl.constexpr,
    PRECISION: tl.constexpr,
    IS_MASKED: tl.constexpr,
    HAS_LOWEST: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor, tl.tensor, tl.tensor, tl.tensor, tl.tensor]:
    """Tiles from `key_begin` (a border of tiles) up to `run_end`; with MERGES whole segments are merged."""
    for start in range(key_begin, run_end, BLOCK_N):
        segment_total, segment_maximum, segment_weight = attend_tile(
            segment_total,
            segment_maximum,
            segment_weight,
            query,
            position,
            lowest,
            slope,
            key_cache,
            value_cache,
            table,
            kv_head,
            start,
            readable_from,
            key_end,
            key_stride_block,
            key_stride_token,
            key_stride_head,
            value_stride_block,
            value_stride_token,
            value_stride_head,
            scale,
            soft_cap,
            D,
            D_PAD,
            V,
            V_PAD,
            BLOCK_N,
            BLOCK_SIZE,
            HAS_SOFT_CAP,
            HAS_ALIBI,
            PRECISION,
            IS_MASKED,
            HAS_LOWEST,
        )
        if MERGES:  # noqa: SIM102 - a branch of the compiler
            if (start + BLOCK_N) % SEGMENT == 0:
                total, maximum, weight = merge(
                    total, maximum, weight, segment_total, segment_maximum, segment_weight
                )
                segment_total = tl.zeros([BLOCK_M, V_PAD], dtype=tl.float32)
                segment_maximum = tl.full([BLOCK_M], float("-inf"), dtype=tl.float32)
                segment_weight = tl.zeros([BLOCK_M], dtype=tl.float32)
    return total, maximum, weight, segment_total, segment_maximum, segment_weight
