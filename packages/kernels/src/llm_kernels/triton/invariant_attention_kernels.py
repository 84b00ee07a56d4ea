"""The device code of batch-invariant attention in Triton: one order of sums per query, whoever else is there.

One program may merge a query's segments in registers (prompts, many rows), or several programs write them
down and another kernel merges them (few long rows): the operations are the same.

Kernels are compiled without contraction of multiplications and additions, so that the compiler cannot round
one form of the same formula otherwise than another.
"""

from __future__ import annotations

import triton
import triton.language as tl

from llm_kernels.triton.attention_kernels import row_of_block
from llm_kernels.triton.attention_softmax import LOG2_E
from llm_kernels.triton.dependent_launch import let_later_start, wait_for_earlier
from llm_kernels.triton.invariant_softmax import attend_run, merge


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


@triton.jit(do_not_specialize=["first_row", "num_rows", "num_segments", "table_stride"])  # type: ignore[untyped-decorator]
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

    Grid (tokens // BLOCK_Q + rows, KV heads), or with IS_DECODE (rows, KV heads, 1). IN_PARTS, for decode
    rows only: grid (rows, KV heads, programs), each of which writes every so-manieth segment to `partial`
    float32 [rows, H, num_segments, V], and its maximum and weight to `partial_state` [rows, H,
    num_segments, 2].
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
        if IN_PARTS:
            segment = key_begin // SEGMENT + tl.program_id(2)
            while segment * SEGMENT < key_end:
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
                at = (row.to(tl.int64) * tl.num_programs(1) * GROUP + head) * num_segments + segment
                tl.store(partial + at[:, None] * V + value_columns[None, :], part, mask=inside)
                tl.store(partial_state + at * 2, part_maximum, mask=valid)
                tl.store(partial_state + at * 2 + 1, part_weight, mask=valid)
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
            if not (HAS_LOWEST or IS_DECODE):
                # Padding tokens have no context: theirs are positions below 0.
                shared_end = tl.maximum(first_position + 1, 0) // BLOCK_N * BLOCK_N
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


@triton.jit(do_not_specialize=["num_segments"])  # type: ignore[untyped-decorator]
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
