"""The device code of batch-invariant attention in Triton: one order of sums per query, whoever else is there.

A query's keys are cut at fixed positions of the sequence, into segments and tiles of these. Each segment has
an online softmax of its own, and segments are merged from the first to the last. Programs of prompts do that
in registers. Of decode rows one program may do it, which keeps what is merged in memory, or several programs
write their segments down and another kernel merges them (few long rows): the operations are the same. Tiles
that a query does not see leave its state as it is.

Kernels are compiled without contraction of multiplications and additions, so that the compiler cannot round
one form of the same formula otherwise than another.
"""

from __future__ import annotations

import triton
import triton.language as tl

from llm_kernels.triton.attention_kernels import row_of_block
from llm_kernels.triton.attention_softmax import LOG2_E, rows_of, shape_scores
from llm_kernels.triton.dependent_launch import let_later_start, wait_for_earlier


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


@triton.jit  # type: ignore[untyped-decorator]
def lowest_key(
    position: tl.tensor,
    window: tl.tensor,
    chunk: tl.tensor,
    HAS_WINDOW: tl.constexpr,
    HAS_CHUNK: tl.constexpr,
) -> tl.tensor:
    """The first key that a query at `position` sees."""
    lowest = tl.zeros_like(position)
    if HAS_WINDOW:
        lowest = tl.maximum(position + 1 - window, lowest)
    if HAS_CHUNK:
        lowest = tl.maximum(tl.maximum(position, 0) // chunk * chunk, lowest)
    return lowest


@triton.jit  # type: ignore[untyped-decorator]
def attention_kernel(  # noqa: PLR0915 - branches of the compiler
    out: tl.tensor,
    partial: tl.tensor,
    partial_state: tl.tensor,
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
    num_segments: tl.tensor,
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
    SEGMENT: tl.constexpr,
    IS_DECODE: tl.constexpr,
    IN_PARTS: tl.constexpr,
    HAS_WINDOW: tl.constexpr,
    HAS_CHUNK: tl.constexpr,
    HAS_SOFT_CAP: tl.constexpr,
    HAS_SINKS: tl.constexpr,
    HAS_ALIBI: tl.constexpr,
    HAS_CACHE_SCALES: tl.constexpr,
    PRECISION: tl.constexpr,
    PDL: tl.constexpr,
) -> None:
    """BLOCK_Q query tokens of one row under one KV head.

    Grid (tokens // BLOCK_Q + rows, KV heads), or with IS_DECODE (rows, KV heads, programs). IN_PARTS each of
    these programs writes every so-manieth segment to `partial` float32 [rows, H, num_segments, V], and its
    maximum and weight to `partial_state` [rows, H, num_segments, 2]. Else there is one, which keeps what it
    has merged there (num_segments is 1).
    """
    HAS_LOWEST: tl.constexpr = HAS_WINDOW or HAS_CHUNK
    let_later_start(PDL)
    wait_for_earlier(PDL)
    kv_head = tl.program_id(1).to(tl.int64)
    if IS_DECODE:
        row = tl.program_id(0)
        place = 0
        row_begin = row
        query_len = 1
    else:
        # The last blocks of a row see the most keys: they start first.
        block = tl.num_programs(0) - 1 - tl.program_id(0)
        row, place = row_of_block(cu_query_lens, first_row, num_rows, block, 1, BLOCK_Q)
        row_begin = tl.load(cu_query_lens + row)
        query_len = tl.load(cu_query_lens + row + 1) - row_begin
    first_query = place * BLOCK_Q
    if first_query < query_len:
        context = tl.load(context_lens + row)
        table = block_tables + row.to(tl.int64) * table_stride
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
        lowest = lowest_key(position, window, chunk, HAS_WINDOW, HAS_CHUNK)
        first_position = context - query_len + first_query
        last_position = first_position + tl.minimum(BLOCK_Q, query_len - first_query) - 1
        key_end = tl.minimum(context, last_position + 1)
        readable_from = 0
        key_begin = 0
        if HAS_LOWEST:
            first = first_position + tl.zeros([1], tl.int32)
            readable_from = tl.max(lowest_key(first, window, chunk, HAS_WINDOW, HAS_CHUNK), axis=0)
            key_begin = readable_from // BLOCK_N * BLOCK_N
        total = tl.zeros([BLOCK_M, V_PAD], dtype=tl.float32)
        maximum = tl.full([BLOCK_M], float("-inf"), dtype=tl.float32)
        weight = tl.zeros([BLOCK_M], dtype=tl.float32)
        value_columns = tl.arange(0, V_PAD)
        inside = valid[:, None] & (value_columns < V)[None, :]
        if IS_DECODE:
            heads = (row.to(tl.int64) * tl.num_programs(1) * GROUP + head) * num_segments
            segment = key_begin // SEGMENT + tl.program_id(2)
            first_segment = segment
            while segment * SEGMENT < tl.maximum(key_end, 1):
                _, _, _, part, part_maximum, part_weight = attend_run(
                    total,
                    maximum,
                    weight,
                    tl.zeros([BLOCK_M, V_PAD], dtype=tl.float32),
                    tl.full([BLOCK_M], float("-inf"), dtype=tl.float32),
                    tl.zeros([BLOCK_M], dtype=tl.float32),
                    query_tile,
                    position,
                    lowest,
                    slope,
                    key_cache,
                    value_cache,
                    table,
                    kv_head,
                    tl.maximum(segment * SEGMENT, key_begin),
                    tl.minimum(segment * SEGMENT + SEGMENT, key_end),
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
                    BLOCK_M,
                    BLOCK_N,
                    BLOCK_SIZE,
                    SEGMENT,
                    False,
                    HAS_SOFT_CAP,
                    HAS_ALIBI,
                    PRECISION,
                    True,
                    HAS_LOWEST,
                )
                if IN_PARTS:
                    at = heads + segment
                    tl.store(partial + at[:, None] * V + value_columns[None, :], part, mask=inside)
                    tl.store(partial_state + at * 2, part_maximum, mask=valid)
                    tl.store(partial_state + at * 2 + 1, part_weight, mask=valid)
                else:
                    before = tl.zeros([BLOCK_M, V_PAD], dtype=tl.float32)
                    if HAS_SINKS:
                        before_maximum = tl.load(sinks + head, mask=valid, other=0.0).to(tl.float32) * LOG2_E
                        before_weight = tl.full([BLOCK_M], 1.0, dtype=tl.float32)
                    else:
                        before_maximum = tl.full([BLOCK_M], float("-inf"), dtype=tl.float32)
                        before_weight = tl.zeros([BLOCK_M], dtype=tl.float32)
                    to = partial + heads[:, None] * V + value_columns[None, :]
                    if segment > first_segment:
                        # Only this program has these.
                        before = tl.load(to, mask=inside, other=0.0)
                        before_maximum = tl.load(partial_state + heads * 2, mask=valid, other=0.0)
                        before_weight = tl.load(partial_state + heads * 2 + 1, mask=valid, other=0.0)
                    part, part_maximum, part_weight = merge(
                        before, before_maximum, before_weight, part, part_maximum, part_weight
                    )
                    if segment * SEGMENT + SEGMENT < key_end:
                        tl.store(to, part, mask=inside)
                        tl.store(partial_state + heads * 2, part_maximum, mask=valid)
                        tl.store(partial_state + heads * 2 + 1, part_weight, mask=valid)
                        tl.debug_barrier()
                    else:
                        part = part / tl.where(part_weight == 0.0, 1.0, part_weight)[:, None]
                        if HAS_CACHE_SCALES:
                            part *= tl.load(value_scale + kv_head)
                        to_out = out + token[:, None] * out_stride_token + head[:, None] * out_stride_head
                        tl.store(to_out + value_columns[None, :], part.to(out.dtype.element_ty), mask=inside)
                segment += tl.num_programs(2)
        else:
            if HAS_SINKS:
                # A sink is a key of score `sink` whose value is 0.
                maximum = tl.load(sinks + head, mask=valid, other=0.0).to(tl.float32) * LOG2_E
                weight = tl.full([BLOCK_M], 1.0, dtype=tl.float32)
            segment_total = tl.zeros([BLOCK_M, V_PAD], dtype=tl.float32)
            segment_maximum = tl.full([BLOCK_M], float("-inf"), dtype=tl.float32)
            segment_weight = tl.zeros([BLOCK_M], dtype=tl.float32)
            shared_end = key_begin
            if not HAS_LOWEST:
                shared_end = (first_position + 1) // BLOCK_N * BLOCK_N
                total, maximum, weight, segment_total, segment_maximum, segment_weight = attend_run(
                    total,
                    maximum,
                    weight,
                    segment_total,
                    segment_maximum,
                    segment_weight,
                    query_tile,
                    position,
                    lowest,
                    slope,
                    key_cache,
                    value_cache,
                    table,
                    kv_head,
                    key_begin,
                    shared_end,
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
                    BLOCK_M,
                    BLOCK_N,
                    BLOCK_SIZE,
                    SEGMENT,
                    True,
                    HAS_SOFT_CAP,
                    HAS_ALIBI,
                    PRECISION,
                    False,
                    False,
                )
            total, maximum, weight, segment_total, segment_maximum, segment_weight = attend_run(
                total,
                maximum,
                weight,
                segment_total,
                segment_maximum,
                segment_weight,
                query_tile,
                position,
                lowest,
                slope,
                key_cache,
                value_cache,
                table,
                kv_head,
                shared_end,
                key_end,
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
                BLOCK_M,
                BLOCK_N,
                BLOCK_SIZE,
                SEGMENT,
                True,
                HAS_SOFT_CAP,
                HAS_ALIBI,
                PRECISION,
                True,
                HAS_LOWEST,
            )
            # The segment that was begun; an empty one changes nothing.
            total, maximum, weight = merge(
                total, maximum, weight, segment_total, segment_maximum, segment_weight
            )
            total = total / tl.where(weight == 0.0, 1.0, weight)[:, None]
            if HAS_CACHE_SCALES:
                total *= tl.load(value_scale + kv_head)
            to = (
                out
                + token[:, None] * out_stride_token
                + head[:, None] * out_stride_head
                + value_columns[None, :]
            )
            tl.store(to, total.to(out.dtype.element_ty), mask=inside)


@triton.jit  # type: ignore[untyped-decorator]
def merge_kernel(
    out: tl.tensor,
    partial: tl.tensor,
    partial_state: tl.tensor,
    context_lens: tl.tensor,
    sinks: tl.tensor,
    value_scale: tl.tensor,
    out_stride_token: tl.tensor,
    out_stride_head: tl.tensor,
    num_segments: tl.tensor,
    window: tl.tensor,
    chunk: tl.tensor,
    GROUP: tl.constexpr,
    V: tl.constexpr,
    V_PAD: tl.constexpr,
    BLOCK_N: tl.constexpr,
    SEGMENT: tl.constexpr,
    HAS_WINDOW: tl.constexpr,
    HAS_CHUNK: tl.constexpr,
    HAS_SINKS: tl.constexpr,
    HAS_CACHE_SCALES: tl.constexpr,
    PDL: tl.constexpr,
) -> None:
    """Merges the segments of one decode row and head in their order. Grid (rows, query heads)."""
    let_later_start(PDL)
    wait_for_earlier(PDL)
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    context = tl.load(context_lens + row)
    position = context - 1 + tl.zeros([1], tl.int32)
    lowest = tl.max(lowest_key(position, window, chunk, HAS_WINDOW, HAS_CHUNK), axis=0)
    columns = tl.arange(0, V_PAD)
    inside = (columns < V)[None, :]
    total = tl.zeros([1, V_PAD], dtype=tl.float32)
    maximum = tl.full([1], float("-inf"), dtype=tl.float32)
    weight = tl.zeros([1], dtype=tl.float32)
    one = tl.zeros([1], dtype=tl.int32)
    if HAS_SINKS:
        maximum = tl.load(sinks + head + one).to(tl.float32) * LOG2_E
        weight = tl.full([1], 1.0, dtype=tl.float32)
    first = (row * tl.num_programs(1) + head) * num_segments
    for segment in range(lowest // BLOCK_N * BLOCK_N // SEGMENT, tl.cdiv(context, SEGMENT)):
        at = first + segment + one
        part = tl.load(partial + at[:, None] * V + columns[None, :], mask=inside, other=0.0)
        part_maximum = tl.load(partial_state + at * 2)
        part_weight = tl.load(partial_state + at * 2 + 1)
        total, maximum, weight = merge(total, maximum, weight, part, part_maximum, part_weight)
    total = total / tl.where(weight == 0.0, 1.0, weight)[:, None]
    if HAS_CACHE_SCALES:
        total *= tl.load(value_scale + head // GROUP)
    to = out + row * out_stride_token + head * out_stride_head + columns[None, :]
    tl.store(to, total.to(out.dtype.element_ty), mask=inside)
