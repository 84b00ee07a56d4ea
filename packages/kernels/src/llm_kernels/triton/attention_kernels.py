"""The device code of paged attention in Triton: decode with split keys, its combination, and prefill.

All query heads of a KV head are rows of one tile, so that a key is loaded once for them. Lengths come from
device memory. Scores are kept in powers of two: exp2 is what the hardware has.
"""

from __future__ import annotations

import triton
import triton.language as tl

_LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit  # type: ignore[untyped-decorator]
def _cache_rows(
    cache: tl.tensor,
    table: tl.tensor,
    token: tl.tensor,
    inside: tl.tensor,
    head: tl.tensor,
    stride_block: tl.tensor,
    stride_token: tl.tensor,
    stride_head: tl.tensor,
    BLOCK_SIZE: tl.constexpr,
) -> tl.tensor:
    """Pointers to the cached vectors of the tokens [BLOCK_N] under one KV head."""
    block = tl.load(table + token // BLOCK_SIZE, mask=inside, other=0).to(tl.int64)
    return cache + block * stride_block + (token % BLOCK_SIZE) * stride_token + head * stride_head


@triton.jit  # type: ignore[untyped-decorator]
def _shape_scores(
    scores: tl.tensor, scale: tl.tensor, soft_cap: tl.tensor, HAS_SOFT_CAP: tl.constexpr
) -> tl.tensor:
    """Scaled and capped scores, in powers of two."""
    if HAS_SOFT_CAP:
        capped = soft_cap * (2.0 * tl.sigmoid(2.0 * scores * scale / soft_cap) - 1.0)
        return capped * _LOG2_E
    return scores * (scale * _LOG2_E)


@triton.jit  # type: ignore[untyped-decorator]
def _attend_keys(
    total: tl.tensor,
    maximum: tl.tensor,
    weight: tl.tensor,
    query: tl.tensor,
    position: tl.tensor,
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
    window: tl.tensor,
    D: tl.constexpr,
    D_PAD: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    HAS_WINDOW: tl.constexpr,
    HAS_SOFT_CAP: tl.constexpr,
    PRECISION: tl.constexpr,
    IS_MASKED: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:
    """Online softmax over the keys [key_begin, key_end): total [M, D_PAD], maximum [M], weight [M].

    Without IS_MASKED every row sees every key, and the range is a whole number of blocks of BLOCK_N: the
    comparisons and selections fall away.
    """
    columns = tl.arange(0, D_PAD)
    for start in range(key_begin, key_end, BLOCK_N):
        token = start + tl.arange(0, BLOCK_N)
        inside = token < key_end
        key_row = _cache_rows(
            key_cache,
            table,
            token,
            inside,
            kv_head,
            key_stride_block,
            key_stride_token,
            key_stride_head,
            BLOCK_SIZE,
        )
        value_row = _cache_rows(
            value_cache,
            table,
            token,
            inside,
            kv_head,
            value_stride_block,
            value_stride_token,
            value_stride_head,
            BLOCK_SIZE,
        )
        if IS_MASKED or D != D_PAD:
            held = inside[:, None] & (columns < D)[None, :]
            key = tl.load(key_row[None, :] + columns[:, None], mask=tl.trans(held), other=0.0)
            value = tl.load(value_row[:, None] + columns[None, :], mask=held, other=0.0)
        else:
            key = tl.load(key_row[None, :] + columns[:, None])
            value = tl.load(value_row[:, None] + columns[None, :])
        scores = tl.dot(query, key.to(query.dtype), input_precision=PRECISION)
        scores = _shape_scores(scores, scale, soft_cap, HAS_SOFT_CAP)
        if IS_MASKED:
            seen = inside[None, :] & (token[None, :] <= position[:, None])
            if HAS_WINDOW:
                seen = seen & (token[None, :] > position[:, None] - window)
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


@triton.jit  # type: ignore[untyped-decorator]
def decode_kernel(
    out: tl.tensor,
    partial: tl.tensor,
    partial_state: tl.tensor,
    query: tl.tensor,
    key_cache: tl.tensor,
    value_cache: tl.tensor,
    context_lens: tl.tensor,
    block_tables: tl.tensor,
    out_stride_token: tl.tensor,
    out_stride_head: tl.tensor,
    query_stride_token: tl.tensor,
    query_stride_head: tl.tensor,
    key_stride_block: tl.tensor,
    key_stride_token: tl.tensor,
    key_stride_head: tl.tensor,
    value_stride_block: tl.tensor,
    value_stride_token: tl.tensor,
    value_stride_head: tl.tensor,
    table_stride: tl.tensor,
    num_splits: tl.tensor,
    scale: tl.tensor,
    soft_cap: tl.tensor,
    window: tl.tensor,
    GROUP: tl.constexpr,
    D: tl.constexpr,
    D_PAD: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    HAS_WINDOW: tl.constexpr,
    HAS_SOFT_CAP: tl.constexpr,
    IS_SPLIT: tl.constexpr,
    PRECISION: tl.constexpr,
) -> None:
    """One row, one KV head, one run of its keys. Grid (decode rows, KV heads, splits); row r is token r."""
    row = tl.program_id(0).to(tl.int64)
    kv_head = tl.program_id(1).to(tl.int64)
    split = tl.program_id(2)
    context = tl.load(context_lens + row)
    first = 0
    if HAS_WINDOW:
        first = tl.maximum(context - window, 0) // BLOCK_N * BLOCK_N
    share = tl.cdiv(tl.cdiv(context - first, BLOCK_N), num_splits) * BLOCK_N
    key_begin = first + split * share
    key_end = tl.minimum(key_begin + share, context)

    member = tl.arange(0, BLOCK_M)
    columns = tl.arange(0, D_PAD)
    head = kv_head * GROUP + member
    inside = (member < GROUP)[:, None] & (columns < D)[None, :]
    query_tile = tl.load(
        query + row * query_stride_token + head[:, None] * query_stride_head + columns[None, :],
        mask=inside,
        other=0.0,
    )
    total, maximum, weight = _attend_keys(
        tl.zeros([BLOCK_M, D_PAD], dtype=tl.float32),
        tl.full([BLOCK_M], float("-inf"), dtype=tl.float32),
        tl.zeros([BLOCK_M], dtype=tl.float32),
        query_tile,
        tl.zeros([BLOCK_M], dtype=tl.int32) + (context - 1),
        key_cache,
        value_cache,
        block_tables + row * table_stride,
        kv_head,
        key_begin,
        key_end,
        key_stride_block,
        key_stride_token,
        key_stride_head,
        value_stride_block,
        value_stride_token,
        value_stride_head,
        scale,
        soft_cap,
        window,
        D,
        D_PAD,
        BLOCK_N,
        BLOCK_SIZE,
        HAS_WINDOW,
        HAS_SOFT_CAP,
        PRECISION,
        True,
    )
    total = total / tl.where(weight == 0.0, 1.0, weight)[:, None]
    if IS_SPLIT:
        # Per split a normalised sum and its log2 weight; -inf where the split holds no key.
        at = (row * tl.num_programs(1) * GROUP + head) * num_splits + split
        tl.store(partial + at[:, None] * D + columns[None, :], total, mask=inside)
        state = tl.where(
            weight == 0.0, float("-inf"), maximum + tl.log2(tl.where(weight == 0.0, 1.0, weight))
        )
        tl.store(partial_state + at, state, mask=member < GROUP)
    else:
        to = out + row * out_stride_token + head[:, None] * out_stride_head + columns[None, :]
        tl.store(to, total.to(out.dtype.element_ty), mask=inside)


@triton.jit  # type: ignore[untyped-decorator]
def combine_kernel(
    out: tl.tensor,
    partial: tl.tensor,
    partial_state: tl.tensor,
    out_stride_token: tl.tensor,
    out_stride_head: tl.tensor,
    num_splits: tl.tensor,
    D: tl.constexpr,
    D_PAD: tl.constexpr,
    SPLITS: tl.constexpr,
) -> None:
    """The splits of one row and query head, weighed and summed. Grid (decode rows, query heads)."""
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    splits = tl.arange(0, SPLITS)
    columns = tl.arange(0, D_PAD)
    at = (row * tl.num_programs(1) + head) * num_splits + splits
    state = tl.load(partial_state + at, mask=splits < num_splits, other=float("-inf"))
    best = tl.max(state, axis=0)
    share = tl.exp2(state - tl.where(best == float("-inf"), 0.0, best))
    inside = (splits < num_splits)[:, None] & (columns < D)[None, :]
    parts = tl.load(partial + at[:, None] * D + columns[None, :], mask=inside, other=0.0)
    norm = tl.sum(share, axis=0)
    total = tl.sum(parts * share[:, None], axis=0) / tl.where(norm == 0.0, 1.0, norm)
    to = out + row * out_stride_token + head * out_stride_head + columns
    tl.store(to, total.to(out.dtype.element_ty), mask=columns < D)


@triton.jit  # type: ignore[untyped-decorator]
def prefill_kernel(
    out: tl.tensor,
    query: tl.tensor,
    key_cache: tl.tensor,
    value_cache: tl.tensor,
    cu_query_lens: tl.tensor,
    context_lens: tl.tensor,
    block_tables: tl.tensor,
    out_stride_token: tl.tensor,
    out_stride_head: tl.tensor,
    query_stride_token: tl.tensor,
    query_stride_head: tl.tensor,
    key_stride_block: tl.tensor,
    key_stride_token: tl.tensor,
    key_stride_head: tl.tensor,
    value_stride_block: tl.tensor,
    value_stride_token: tl.tensor,
    value_stride_head: tl.tensor,
    table_stride: tl.tensor,
    first_row: tl.tensor,
    num_rows: tl.tensor,
    scale: tl.tensor,
    soft_cap: tl.tensor,
    window: tl.tensor,
    GROUP: tl.constexpr,
    D: tl.constexpr,
    D_PAD: tl.constexpr,
    BLOCK_Q: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    HAS_WINDOW: tl.constexpr,
    HAS_SOFT_CAP: tl.constexpr,
    PRECISION: tl.constexpr,
) -> None:
    """BLOCK_Q query tokens of one row under one KV head. Grid (tokens // BLOCK_Q + rows, KV heads).

    The grid bounds the number of blocks without knowing the lengths: row i of the rows from `first_row` on
    starts at block (its first token) // BLOCK_Q + i, which leaves room for all its blocks. Programs past a
    row's end do nothing.
    """
    # The last blocks of a row see the most keys: they start first.
    block = tl.num_programs(0) - 1 - tl.program_id(0)
    kv_head = tl.program_id(1).to(tl.int64)
    origin = tl.load(cu_query_lens + first_row)
    low = 0
    high = num_rows
    while high - low > 1:
        middle = (low + high) // 2
        start = (tl.load(cu_query_lens + first_row + middle) - origin) // BLOCK_Q + middle
        low = tl.where(start <= block, middle, low)
        high = tl.where(start <= block, high, middle)
    row = (first_row + low).to(tl.int64)
    row_begin = tl.load(cu_query_lens + row)
    query_len = tl.load(cu_query_lens + row + 1) - row_begin
    first_query = (block - ((row_begin - origin) // BLOCK_Q + low)) * BLOCK_Q
    if first_query < query_len:
        context = tl.load(context_lens + row)
        member = tl.arange(0, BLOCK_M)
        columns = tl.arange(0, D_PAD)
        query_at = first_query + member // GROUP
        valid = (member < BLOCK_Q * GROUP) & (query_at < query_len)
        token = (row_begin + query_at).to(tl.int64)
        head = kv_head * GROUP + member % GROUP
        inside = valid[:, None] & (columns < D)[None, :]
        query_tile = tl.load(
            query
            + token[:, None] * query_stride_token
            + head[:, None] * query_stride_head
            + columns[None, :],
            mask=inside,
            other=0.0,
        )
        position = context - query_len + query_at
        key_end = tl.minimum(context, context - query_len + first_query + BLOCK_Q)
        key_begin = 0
        if HAS_WINDOW:
            key_begin = tl.maximum(context - query_len + first_query + 1 - window, 0) // BLOCK_N * BLOCK_N
        table = block_tables + row * table_stride
        total = tl.zeros([BLOCK_M, D_PAD], dtype=tl.float32)
        maximum = tl.full([BLOCK_M], float("-inf"), dtype=tl.float32)
        weight = tl.zeros([BLOCK_M], dtype=tl.float32)
        masked_begin = key_begin
        if not HAS_WINDOW:
            # The keys up to the tile's first query are seen by all of it.
            masked_begin = (context - query_len + first_query + 1) // BLOCK_N * BLOCK_N
            total, maximum, weight = _attend_keys(
                total,
                maximum,
                weight,
                query_tile,
                position,
                key_cache,
                value_cache,
                table,
                kv_head,
                0,
                masked_begin,
                key_stride_block,
                key_stride_token,
                key_stride_head,
                value_stride_block,
                value_stride_token,
                value_stride_head,
                scale,
                soft_cap,
                window,
                D,
                D_PAD,
                BLOCK_N,
                BLOCK_SIZE,
                HAS_WINDOW,
                HAS_SOFT_CAP,
                PRECISION,
                False,
            )
        total, maximum, weight = _attend_keys(
            total,
            maximum,
            weight,
            query_tile,
            position,
            key_cache,
            value_cache,
            table,
            kv_head,
            masked_begin,
            key_end,
            key_stride_block,
            key_stride_token,
            key_stride_head,
            value_stride_block,
            value_stride_token,
            value_stride_head,
            scale,
            soft_cap,
            window,
            D,
            D_PAD,
            BLOCK_N,
            BLOCK_SIZE,
            HAS_WINDOW,
            HAS_SOFT_CAP,
            PRECISION,
            True,
        )
        total = total / tl.where(weight == 0.0, 1.0, weight)[:, None]
        to = out + token[:, None] * out_stride_token + head[:, None] * out_stride_head + columns[None, :]
        tl.store(to, total.to(out.dtype.element_ty), mask=inside)
