"""The device code of attention over latents (MLA) in Triton: decode with split keys, and prefill.

All heads share the cached latents, so the pairs of a token and a head are the rows of a tile, and a latent is
loaded once for both products: its whole is the key, its head the value. It is handled as two parts, the
compressed latent of R columns and the rope key of P.
"""

from __future__ import annotations

import triton
import triton.language as tl

from llm_kernels.triton.attention_decode_kernels import split_keys, state_of
from llm_kernels.triton.attention_kernels import row_of_block
from llm_kernels.triton.attention_softmax import rows_of, shape_scores
from llm_kernels.triton.dependent_launch import let_later_start, wait_for_earlier


@triton.jit  # type: ignore[untyped-decorator]
def _attend_latents(
    total: tl.tensor,
    maximum: tl.tensor,
    weight: tl.tensor,
    query: tl.tensor,
    query_rope: tl.tensor,
    position: tl.tensor,
    latent_cache: tl.tensor,
    table: tl.tensor,
    key_begin: tl.tensor,
    key_end: tl.tensor,
    stride_block: tl.tensor,
    stride_token: tl.tensor,
    scale: tl.tensor,
    R: tl.constexpr,
    R_PAD: tl.constexpr,
    P: tl.constexpr,
    P_PAD: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    PRECISION: tl.constexpr,
    IS_MASKED: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:
    """Online softmax over the keys [key_begin, key_end): total [M, R_PAD], maximum [M], weight [M].

    A row sees the keys up to its `position` [M]. Without IS_MASKED every row sees every key, and the range is
    a whole number of blocks of BLOCK_N.
    """
    columns = tl.arange(0, R_PAD)
    rope_columns = tl.arange(0, P_PAD)
    for start in range(key_begin, key_end, BLOCK_N):
        token = start + tl.arange(0, BLOCK_N)
        inside = token < key_end
        at = rows_of(latent_cache, table, token, inside, 0, stride_block, stride_token, 0, BLOCK_SIZE, True)
        if IS_MASKED or R != R_PAD:
            held = inside[:, None] & (columns < R)[None, :]
            latent = tl.load(at[:, None] + columns[None, :], mask=held, other=0.0).to(query.dtype)
        else:
            latent = tl.load(at[:, None] + columns[None, :]).to(query.dtype)
        scores = tl.dot(query, tl.trans(latent), input_precision=PRECISION)
        if P > 0:
            held = (rope_columns < P)[:, None] & inside[None, :]
            rope = tl.load(at[None, :] + R + rope_columns[:, None], mask=held, other=0.0)
            scores += tl.dot(query_rope, rope.to(query.dtype), input_precision=PRECISION)
        scores = shape_scores(scores, scale, 1.0, False)
        if IS_MASKED:
            seen = inside[None, :] & (token[None, :] <= position[:, None])
            scores = tl.where(seen, scores, float("-inf"))
        new_maximum = tl.maximum(maximum, tl.max(scores, axis=1))
        # A row that has seen no key yet keeps -inf; 0 stands in so that no difference is NaN.
        shift = tl.where(new_maximum == float("-inf"), 0.0, new_maximum) if IS_MASKED else new_maximum
        weights = tl.exp2(scores - shift[:, None])
        fade = tl.exp2(maximum - shift)
        weight = weight * fade + tl.sum(weights, axis=1)
        total = total * fade[:, None]
        total += tl.dot(weights.to(query.dtype), latent, input_precision=PRECISION)
        maximum = new_maximum
    return total, maximum, weight


@triton.jit  # type: ignore[untyped-decorator]
def latent_decode_kernel(
    out: tl.tensor,
    partial: tl.tensor,
    partial_state: tl.tensor,
    query: tl.tensor,
    latent_cache: tl.tensor,
    context_lens: tl.tensor,
    block_tables: tl.tensor,
    out_stride_token: tl.tensor,
    out_stride_head: tl.tensor,
    query_stride_token: tl.tensor,
    query_stride_head: tl.tensor,
    cache_stride_block: tl.tensor,
    cache_stride_token: tl.tensor,
    table_stride: tl.tensor,
    num_splits: tl.tensor,
    scale: tl.tensor,
    H: tl.constexpr,
    R: tl.constexpr,
    R_PAD: tl.constexpr,
    P: tl.constexpr,
    P_PAD: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    LEAST_BLOCKS: tl.constexpr,
    IS_SPLIT: tl.constexpr,
    PRECISION: tl.constexpr,
    PDL: tl.constexpr,
) -> None:
    """One row, BLOCK_M heads, one run of its keys. Grid (decode rows, blocks of heads, splits).

    A row whose keys are one split is written to `out`, others to `partial`.
    """
    let_later_start(PDL)
    wait_for_earlier(PDL)
    row = tl.program_id(0).to(tl.int64)
    split = tl.program_id(2)
    context = tl.load(context_lens + row)
    share, used = split_keys(context, num_splits, BLOCK_N, LEAST_BLOCKS)
    # A row without keys has its zeros written by the first split.
    if split < tl.maximum(used, 1):
        key_begin = split * share
        key_end = tl.minimum(key_begin + share, context)
        head = tl.program_id(1) * BLOCK_M + tl.arange(0, BLOCK_M)
        columns = tl.arange(0, R_PAD)
        rope_columns = tl.arange(0, P_PAD)
        from_query = query + row * query_stride_token + head[:, None] * query_stride_head
        inside = (head < H)[:, None] & (columns < R)[None, :]
        query_tile = tl.load(from_query + columns[None, :], mask=inside, other=0.0)
        rope_inside = (head < H)[:, None] & (rope_columns < P)[None, :]
        query_rope = tl.load(from_query + R + rope_columns[None, :], mask=rope_inside, other=0.0)
        total, maximum, weight = _attend_latents(
            tl.zeros([BLOCK_M, R_PAD], dtype=tl.float32),
            tl.full([BLOCK_M], float("-inf"), dtype=tl.float32),
            tl.zeros([BLOCK_M], dtype=tl.float32),
            query_tile,
            query_rope,
            tl.zeros([BLOCK_M], dtype=tl.int32) + (context - 1),
            latent_cache,
            block_tables + row * table_stride,
            key_begin,
            key_end,
            cache_stride_block,
            cache_stride_token,
            scale,
            R,
            R_PAD,
            P,
            P_PAD,
            BLOCK_N,
            BLOCK_SIZE,
            PRECISION,
            True,
        )
        total = total / tl.where(weight == 0.0, 1.0, weight)[:, None]
        is_part = False
        if IS_SPLIT:
            is_part = used > 1
        if is_part:
            at = (row * H + head) * num_splits + split
            tl.store(partial + at[:, None] * R + columns[None, :], total, mask=inside)
            tl.store(partial_state + at, state_of(maximum, weight), mask=head < H)
        else:
            to = out + row * out_stride_token + head[:, None] * out_stride_head + columns[None, :]
            tl.store(to, total.to(out.dtype.element_ty), mask=inside)


@triton.jit  # type: ignore[untyped-decorator]
def latent_prefill_kernel(
    out: tl.tensor,
    query: tl.tensor,
    latent_cache: tl.tensor,
    cu_query_lens: tl.tensor,
    context_lens: tl.tensor,
    block_tables: tl.tensor,
    out_stride_token: tl.tensor,
    out_stride_head: tl.tensor,
    query_stride_token: tl.tensor,
    query_stride_head: tl.tensor,
    cache_stride_block: tl.tensor,
    cache_stride_token: tl.tensor,
    table_stride: tl.tensor,
    first_row: tl.tensor,
    num_rows: tl.tensor,
    scale: tl.tensor,
    H: tl.constexpr,
    R: tl.constexpr,
    R_PAD: tl.constexpr,
    P: tl.constexpr,
    P_PAD: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    PRECISION: tl.constexpr,
) -> None:
    """BLOCK_M pairs of a token and a head of one row, heads innermost. Grid (tokens * H // BLOCK_M + rows).

    Programs past a row's end do nothing.
    """
    # The last blocks of a row see the most keys: they start first.
    block = tl.num_programs(0) - 1 - tl.program_id(0)
    row, place = row_of_block(cu_query_lens, first_row, num_rows, block, H, BLOCK_M)
    row_begin = tl.load(cu_query_lens + row)
    query_len = tl.load(cu_query_lens + row + 1) - row_begin
    first_pair = place * BLOCK_M
    if first_pair < query_len * H:
        context = tl.load(context_lens + row)
        pair = first_pair + tl.arange(0, BLOCK_M)
        query_at = pair // H
        head = pair % H
        valid = query_at < query_len
        token = (row_begin + query_at).to(tl.int64)
        columns = tl.arange(0, R_PAD)
        rope_columns = tl.arange(0, P_PAD)
        from_query = query + token[:, None] * query_stride_token + head[:, None] * query_stride_head
        inside = valid[:, None] & (columns < R)[None, :]
        query_tile = tl.load(from_query + columns[None, :], mask=inside, other=0.0)
        rope_inside = valid[:, None] & (rope_columns < P)[None, :]
        query_rope = tl.load(from_query + R + rope_columns[None, :], mask=rope_inside, other=0.0)
        origin = context - query_len
        position = origin + query_at
        key_end = tl.minimum(context, origin + (first_pair + BLOCK_M - 1) // H + 1)
        # The keys up to the tile's first query are seen by all of it.
        shared_end = tl.maximum(origin + first_pair // H + 1, 0) // BLOCK_N * BLOCK_N
        table = block_tables + row.to(tl.int64) * table_stride
        total, maximum, weight = _attend_latents(
            tl.zeros([BLOCK_M, R_PAD], dtype=tl.float32),
            tl.full([BLOCK_M], float("-inf"), dtype=tl.float32),
            tl.zeros([BLOCK_M], dtype=tl.float32),
            query_tile,
            query_rope,
            position,
            latent_cache,
            table,
            0,
            shared_end,
            cache_stride_block,
            cache_stride_token,
            scale,
            R,
            R_PAD,
            P,
            P_PAD,
            BLOCK_N,
            BLOCK_SIZE,
            PRECISION,
            False,
        )
        total, maximum, weight = _attend_latents(
            total,
            maximum,
            weight,
            query_tile,
            query_rope,
            position,
            latent_cache,
            table,
            shared_end,
            key_end,
            cache_stride_block,
            cache_stride_token,
            scale,
            R,
            R_PAD,
            P,
            P_PAD,
            BLOCK_N,
            BLOCK_SIZE,
            PRECISION,
            True,
        )
        total = total / tl.where(weight == 0.0, 1.0, weight)[:, None]
        to = out + token[:, None] * out_stride_token + head[:, None] * out_stride_head + columns[None, :]
        tl.store(to, total.to(out.dtype.element_ty), mask=inside)
