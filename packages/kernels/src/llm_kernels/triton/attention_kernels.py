"""The device code of prefill attention in Triton, over a paged cache or packed keys.

All query heads of a KV head are rows of one tile, so that a key is loaded once for them. Lengths come from
device memory. Tiles of keys start at the first key that a tile's first query sees, not at a round number:
what lies before may belong to others, and a value that is NaN there would not be hidden by a weight of 0.
"""

from __future__ import annotations

import triton
import triton.language as tl

from llm_kernels.triton.attention_softmax import attend_keys, start_softmax


@triton.jit  # type: ignore[untyped-decorator]
def row_of_block(
    cu_query_lens: tl.tensor,
    first_row: tl.tensor,
    num_rows: tl.tensor,
    block: tl.tensor,
    ROWS_PER_TOKEN: tl.constexpr,
    BLOCK: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor]:
    """Which of the rows from `first_row` on a block of work belongs to, and the block's place within the row.

    A token is ROWS_PER_TOKEN rows of work, a block BLOCK of them. The i-th row starts at block
    (its first token) * ROWS_PER_TOKEN // BLOCK + i, which leaves room for all its blocks, so that the grid is
    known without the lengths; the last places of a row may lie past its end.
    """
    origin = tl.load(cu_query_lens + first_row)
    low = 0
    high = num_rows
    while high - low > 1:
        middle = (low + high) // 2
        begin = tl.load(cu_query_lens + first_row + middle) - origin
        start = begin * ROWS_PER_TOKEN // BLOCK + middle
        low = tl.where(start <= block, middle, low)
        high = tl.where(start <= block, high, middle)
    begin = tl.load(cu_query_lens + first_row + low) - origin
    return first_row + low, block - (begin * ROWS_PER_TOKEN // BLOCK + low)


@triton.jit  # type: ignore[untyped-decorator]
def _key_ranges(
    position: tl.tensor,
    first_position: tl.tensor,
    context: tl.tensor,
    window: tl.tensor,
    chunk: tl.tensor,
    BLOCK_Q: tl.constexpr,
    IS_CAUSAL: tl.constexpr,
    HAS_WINDOW: tl.constexpr,
    HAS_CHUNK: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor, tl.tensor, tl.tensor, tl.tensor, tl.tensor]:
    """Which keys the queries at `position` [M], from `first_position` on, see.

    Per query the lowest and the highest key, as far as there are such bounds; of the tile the keys some query
    sees, [key_begin, key_end), and of them those that all see, [shared_begin, shared_end).
    """
    last_position = first_position + BLOCK_Q - 1
    lowest = position
    highest = position
    key_begin = 0
    shared_begin = 0
    key_end = context
    shared_end = context
    if HAS_WINDOW:
        lowest = position + 1 - window
        key_begin = tl.maximum(first_position + 1 - window, 0)
        shared_begin = tl.maximum(last_position + 1 - window, 0)
        if not IS_CAUSAL:
            highest = position + window - 1
            key_end = tl.minimum(context, last_position + window)
            shared_end = tl.minimum(context, first_position + window)
    if HAS_CHUNK:
        in_chunk = tl.maximum(position, 0) // chunk * chunk
        lowest = tl.maximum(lowest, in_chunk) if HAS_WINDOW else in_chunk
        key_begin = tl.maximum(key_begin, tl.maximum(first_position, 0) // chunk * chunk)
        shared_begin = tl.maximum(shared_begin, tl.maximum(last_position, 0) // chunk * chunk)
    if IS_CAUSAL:
        key_end = tl.minimum(context, last_position + 1)
        shared_end = first_position + 1
    return lowest, highest, key_begin, key_end, shared_begin, shared_end


@triton.jit  # type: ignore[untyped-decorator]
def prefill_kernel(
    out: tl.tensor,
    query: tl.tensor,
    key_cache: tl.tensor,
    value_cache: tl.tensor,
    cu_query_lens: tl.tensor,
    context_lens: tl.tensor,
    block_tables: tl.tensor,
    sinks: tl.tensor,
    slopes: tl.tensor,
    key_scale: tl.tensor,
    value_scale: tl.tensor,
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
    chunk: tl.tensor,
    GROUP: tl.constexpr,
    D: tl.constexpr,
    D_PAD: tl.constexpr,
    V: tl.constexpr,
    V_PAD: tl.constexpr,
    BLOCK_Q: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    IS_PAGED: tl.constexpr,
    IS_CAUSAL: tl.constexpr,
    HAS_WINDOW: tl.constexpr,
    HAS_CHUNK: tl.constexpr,
    HAS_SOFT_CAP: tl.constexpr,
    HAS_SINKS: tl.constexpr,
    HAS_ALIBI: tl.constexpr,
    HAS_CACHE_SCALES: tl.constexpr,
    PRECISION: tl.constexpr,
) -> None:
    """BLOCK_Q query tokens of one row under one KV head. Grid (tokens // BLOCK_Q + rows, KV heads).

    Programs past a row's end do nothing. Without IS_PAGED keys and values are packed like the queries, and
    `context_lens` holds the prefix sums of their lengths.
    """
    HAS_LOWEST: tl.constexpr = HAS_WINDOW or HAS_CHUNK
    HAS_HIGHEST: tl.constexpr = IS_CAUSAL or HAS_WINDOW
    # The last blocks of a row see the most keys: they start first.
    block = tl.num_programs(0) - 1 - tl.program_id(0)
    kv_head = tl.program_id(1).to(tl.int64)
    row, place = row_of_block(cu_query_lens, first_row, num_rows, block, 1, BLOCK_Q)
    row_begin = tl.load(cu_query_lens + row)
    query_len = tl.load(cu_query_lens + row + 1) - row_begin
    first_query = place * BLOCK_Q
    if first_query < query_len:
        table = block_tables
        if IS_PAGED:
            context = tl.load(context_lens + row)
            table = block_tables + row.to(tl.int64) * table_stride
        else:
            keys_begin = tl.load(context_lens + row)
            context = tl.load(context_lens + row + 1) - keys_begin
            key_cache += keys_begin.to(tl.int64) * key_stride_token
            value_cache += keys_begin.to(tl.int64) * value_stride_token
        member = tl.arange(0, BLOCK_M)
        columns = tl.arange(0, D_PAD)
        query_at = first_query + member // GROUP
        valid = (member < BLOCK_Q * GROUP) & (query_at < query_len)
        token = (row_begin + query_at).to(tl.int64)
        head = kv_head * GROUP + member % GROUP
        query_tile = tl.load(
            query
            + token[:, None] * query_stride_token
            + head[:, None] * query_stride_head
            + columns[None, :],
            mask=valid[:, None] & (columns < D)[None, :],
            other=0.0,
        )
        if HAS_CACHE_SCALES:
            scale *= tl.load(key_scale + kv_head)
        position = context - query_len + query_at
        slope = tl.zeros([BLOCK_M], dtype=tl.float32)
        if HAS_ALIBI:
            slope = tl.load(slopes + head, mask=valid, other=0.0)
        lowest, highest, key_begin, key_end, shared_begin, shared_end = _key_ranges(
            position,
            context - query_len + first_query,
            context,
            window,
            chunk,
            BLOCK_Q,
            IS_CAUSAL,
            HAS_WINDOW,
            HAS_CHUNK,
        )
        total, maximum, weight = start_softmax(sinks, head, valid, BLOCK_M, V_PAD, HAS_SINKS)
        if HAS_LOWEST:
            shared_begin = key_begin + tl.cdiv(shared_begin - key_begin, BLOCK_N) * BLOCK_N
            total, maximum, weight = attend_keys(
                total,
                maximum,
                weight,
                query_tile,
                position,
                lowest,
                highest,
                slope,
                key_cache,
                value_cache,
                table,
                kv_head,
                key_begin,
                tl.minimum(shared_begin, key_end),
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
                IS_PAGED,
                HAS_SOFT_CAP,
                HAS_ALIBI,
                PRECISION,
                True,
                HAS_LOWEST,
                HAS_HIGHEST,
            )
        shared_end = shared_begin + tl.maximum(shared_end - shared_begin, 0) // BLOCK_N * BLOCK_N
        total, maximum, weight = attend_keys(
            total,
            maximum,
            weight,
            query_tile,
            position,
            lowest,
            highest,
            slope,
            key_cache,
            value_cache,
            table,
            kv_head,
            shared_begin,
            shared_end,
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
            IS_PAGED,
            HAS_SOFT_CAP,
            HAS_ALIBI,
            PRECISION,
            False,
            HAS_LOWEST,
            HAS_HIGHEST,
        )
        total, maximum, weight = attend_keys(
            total,
            maximum,
            weight,
            query_tile,
            position,
            lowest,
            highest,
            slope,
            key_cache,
            value_cache,
            table,
            kv_head,
            shared_end,
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
            IS_PAGED,
            HAS_SOFT_CAP,
            HAS_ALIBI,
            PRECISION,
            True,
            HAS_LOWEST,
            HAS_HIGHEST,
        )
        total = total / tl.where(weight == 0.0, 1.0, weight)[:, None]
        if HAS_CACHE_SCALES:
            total *= tl.load(value_scale + kv_head)
        value_columns = tl.arange(0, V_PAD)
        to = (
            out + token[:, None] * out_stride_token + head[:, None] * out_stride_head + value_columns[None, :]
        )
        inside = valid[:, None] & (value_columns < V)[None, :]
        tl.store(to, total.to(out.dtype.element_ty), mask=inside)
