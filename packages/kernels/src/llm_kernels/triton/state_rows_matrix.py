"""Device code of the recurrences whose state is a matrix [K, V] a head: delta rule, SSD, linear attention.

S_t = decay_t S_(t-1) + k_t u_t^T and o_t = q_t^T S_t, where u_t is the value, or what the delta rule makes
of it. `token_kernel` goes token by token and is the whole of a decode step. `chunk_kernel` replaces the
recurrence by products of matrices within chunks of L tokens; for the delta rule `inverse_kernel` has made the
inverses of the chunks' triangular systems. Chunks end at multiples of L, which divides the block size: every
border of a block is the end of a chunk. One program holds one tile of one head's state in registers over all
tokens of its row.
"""

from __future__ import annotations

import triton
import triton.language as tl

from llm_kernels.triton.state_rows import row_tokens, softplus, state_block

# How a decay is given: a log decay a head, one a key dimension, a slope a head, a step size times A.
HEAD_DECAY = tl.constexpr(0)
KEY_DECAY = tl.constexpr(1)
SLOPE = tl.constexpr(2)
STEP_SIZE = tl.constexpr(3)


@triton.jit  # type: ignore[untyped-decorator]
def _step_size(
    dt: tl.tensor,
    bias: tl.tensor,
    head: tl.tensor,
    dt_min: tl.tensor,
    dt_max: tl.tensor,
    HAS_BIAS: tl.constexpr,
) -> tl.tensor:
    if HAS_BIAS:
        dt += tl.load(bias + head).to(tl.float32)
    return tl.minimum(tl.maximum(softplus(dt), dt_min), dt_max)


@triton.jit  # type: ignore[untyped-decorator]
def token_kernel(  # noqa: PLR0915  # one loop over a state in registers; calls would hide its order
    out: tl.tensor,
    query: tl.tensor,
    key: tl.tensor,
    value: tl.tensor,
    decay: tl.tensor,
    beta: tl.tensor,
    rate: tl.tensor,
    bias: tl.tensor,
    skip: tl.tensor,
    cache: tl.tensor,
    cu_query_lens: tl.tensor,
    context_lens: tl.tensor,
    block_tables: tl.tensor,
    out_stride_token: tl.tensor,
    out_stride_head: tl.tensor,
    query_stride_token: tl.tensor,
    query_stride_head: tl.tensor,
    key_stride_token: tl.tensor,
    key_stride_head: tl.tensor,
    value_stride_token: tl.tensor,
    value_stride_head: tl.tensor,
    decay_stride_token: tl.tensor,
    decay_stride_head: tl.tensor,
    beta_stride_token: tl.tensor,
    beta_stride_head: tl.tensor,
    skip_stride_head: tl.tensor,
    skip_stride_value: tl.tensor,
    cache_stride_block: tl.tensor,
    cache_stride_head: tl.tensor,
    cache_stride_key: tl.tensor,
    cache_stride_value: tl.tensor,
    table_stride: tl.tensor,
    first_row: tl.tensor,
    block_size: tl.tensor,
    scale: tl.tensor,
    dt_min: tl.tensor,
    dt_max: tl.tensor,
    RATIO: tl.constexpr,
    K: tl.constexpr,
    K_PAD: tl.constexpr,
    V: tl.constexpr,
    BLOCK_V: tl.constexpr,
    DECAY: tl.constexpr,
    IS_DELTA: tl.constexpr,
    L2_NORM: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    HAS_SKIP: tl.constexpr,
    IS_DECODE: tl.constexpr,
) -> None:
    """One row, one head, one tile of its values. Grid (rows, heads, value tiles)."""
    row = tl.program_id(0).to(tl.int64) + first_row
    head = tl.program_id(1).to(tl.int64)
    keys = tl.arange(0, K_PAD)
    values = tl.program_id(2) * BLOCK_V + tl.arange(0, BLOCK_V)
    key_held, value_held = keys < K, values < V
    begin, end = row_tokens(cu_query_lens, row, IS_DECODE)
    context = tl.load(context_lens + row)
    first = begin.to(tl.int64)
    out += head * out_stride_head + values
    if context <= 0:
        for step in range(end - begin):
            at_out = out + (first + step) * out_stride_token
            tl.store(at_out, tl.zeros([BLOCK_V], dtype=tl.float32).to(out.dtype.element_ty), mask=value_held)
        return
    if begin == end:
        return
    computed = context - (end - begin)
    table = block_tables + row * table_stride
    held = key_held[:, None] & value_held[None, :]
    at_state = cache + head * cache_stride_head
    at_state += keys[:, None] * cache_stride_key + values[None, :] * cache_stride_value
    source = state_block(table, tl.maximum(computed - 1, 0), block_size)
    seen = held & (computed > 0)
    state = tl.load(at_state + source * cache_stride_block, mask=seen, other=0.0).to(tl.float32)
    query += (head // RATIO) * query_stride_head + keys
    key += (head // RATIO) * key_stride_head + keys
    value += head * value_stride_head + values
    for step in range(end - begin):
        token = first + step
        q = tl.load(query + token * query_stride_token, mask=key_held, other=0.0).to(tl.float32)
        k = tl.load(key + token * key_stride_token, mask=key_held, other=0.0).to(tl.float32)
        x = tl.load(value + token * value_stride_token, mask=value_held, other=0.0).to(tl.float32)
        if L2_NORM:
            q = q * tl.rsqrt(tl.sum(q * q, axis=0) + 1e-6)
            k = k * tl.rsqrt(tl.sum(k * k, axis=0) + 1e-6)
        change = x
        if DECAY == KEY_DECAY:
            at_decay = decay + token * decay_stride_token + head * decay_stride_head + keys
            state = state * tl.exp(tl.load(at_decay, mask=key_held, other=0.0).to(tl.float32))[:, None]
        elif DECAY == SLOPE:
            state = state * tl.exp(-tl.load(decay + head).to(tl.float32))
        else:
            amount = tl.load(decay + token * decay_stride_token + head * decay_stride_head).to(tl.float32)
            if DECAY == STEP_SIZE:
                amount = _step_size(amount, bias, head, dt_min, dt_max, HAS_BIAS)
                change = x * amount
                amount = amount * tl.load(rate + head).to(tl.float32)
            state = state * tl.exp(amount)
        if IS_DELTA:
            strength = tl.load(beta + token * beta_stride_token + head * beta_stride_head).to(tl.float32)
            change = (x - tl.sum(state * k[:, None], axis=0)) * strength
        state += k[:, None] * change[None, :]
        result = tl.sum(state * q[:, None], axis=0) * scale
        if HAS_SKIP:
            at_skip = skip + head * skip_stride_head + values * skip_stride_value
            result += x * tl.load(at_skip, mask=value_held, other=0.0).to(tl.float32)
        tl.store(out + token * out_stride_token, result.to(out.dtype.element_ty), mask=value_held)
        position = computed + step
        if ((position + 1) % block_size == 0) | (position == context - 1):
            target = state_block(table, position, block_size)
            tl.store(at_state + target * cache_stride_block, state.to(cache.dtype.element_ty), mask=held)


@triton.jit  # type: ignore[untyped-decorator]
def _chunk(
    index: tl.tensor, computed: tl.tensor, context: tl.tensor, L: tl.constexpr
) -> tuple[tl.tensor, tl.tensor]:
    """First position of a row's chunk and the one behind its last."""
    number = computed // L + index
    return tl.maximum(number * L, computed), tl.minimum((number + 1) * L, context)


@triton.jit  # type: ignore[untyped-decorator]
def _tile(
    base: tl.tensor,
    tokens: tl.tensor,
    stride: tl.tensor,
    columns: tl.tensor,
    inside: tl.tensor,
    held: tl.tensor,
) -> tl.tensor:
    """float32 [tokens, columns], 0 outside."""
    at = base + tokens[:, None] * stride + columns[None, :]
    return tl.load(at, mask=inside[:, None] & held[None, :], other=0.0).to(tl.float32)


@triton.jit  # type: ignore[untyped-decorator]
def _unit(x: tl.tensor) -> tl.tensor:
    return x * tl.rsqrt(tl.sum(x * x, axis=1) + 1e-6)[:, None]


@triton.jit  # type: ignore[untyped-decorator]
def _pair_decays(total: tl.tensor, TOKENS: tl.constexpr, STRICT: tl.constexpr) -> tl.tensor:
    """exp(total_i - total_j) for j before i, and for j = i unless STRICT; else 0."""
    at = tl.arange(0, TOKENS)
    earlier = at[:, None] > at[None, :] if STRICT else at[:, None] >= at[None, :]
    gap = tl.where(earlier, total[:, None] - total[None, :], 0.0)
    return tl.where(earlier, tl.exp(gap), 0.0)


@triton.jit  # type: ignore[untyped-decorator]
def inverse_kernel(
    inverse: tl.tensor,
    key: tl.tensor,
    decay: tl.tensor,
    beta: tl.tensor,
    cu_query_lens: tl.tensor,
    context_lens: tl.tensor,
    inverse_stride_token: tl.tensor,
    inverse_stride_head: tl.tensor,
    key_stride_token: tl.tensor,
    key_stride_head: tl.tensor,
    decay_stride_token: tl.tensor,
    decay_stride_head: tl.tensor,
    beta_stride_token: tl.tensor,
    beta_stride_head: tl.tensor,
    first_row: tl.tensor,
    RATIO: tl.constexpr,
    K: tl.constexpr,
    K_PAD: tl.constexpr,
    L: tl.constexpr,
    TOKENS: tl.constexpr,
    L2_NORM: tl.constexpr,
    PRECISION: tl.constexpr,
) -> None:
    """(I + strictly lower part of beta_i k_i^T k_j decayed from j to i)^-1. Grid (rows, chunks, heads).

    Row i of a chunk's inverse lies with token i: [T, H, TOKENS].
    """
    row = tl.program_id(0).to(tl.int64) + first_row
    head = tl.program_id(2).to(tl.int64)
    begin, end = row_tokens(cu_query_lens, row, False)
    context = tl.load(context_lens + row)
    computed = context - (end - begin)
    start, stop = _chunk(tl.program_id(1), computed, context, L)
    if (context <= 0) | (start >= stop):
        return
    at = tl.arange(0, TOKENS)
    keys = tl.arange(0, K_PAD)
    inside = at < stop - start
    tokens = (begin + (start - computed) + at).to(tl.int64)
    k = _tile(key + (head // RATIO) * key_stride_head, tokens, key_stride_token, keys, inside, keys < K)
    if L2_NORM:
        k = _unit(k)
    at_decay = decay + tokens * decay_stride_token + head * decay_stride_head
    total = tl.cumsum(tl.load(at_decay, mask=inside, other=0.0).to(tl.float32), axis=0)
    at_beta = beta + tokens * beta_stride_token + head * beta_stride_head
    strength = tl.load(at_beta, mask=inside, other=0.0).to(tl.float32)
    products = tl.dot(k, tl.trans(k), input_precision=PRECISION)
    result = -strength[:, None] * products * _pair_decays(total, TOKENS, True)
    for i in range(1, TOKENS):
        mine = at[:, None] == i
        row_i = tl.sum(tl.where(mine, result, 0.0), axis=0)
        row_i += tl.sum(row_i[:, None] * result, axis=0)
        result = tl.where(mine, row_i[None, :], result)
    result += tl.where(at[:, None] == at[None, :], 1.0, 0.0)
    at_inverse = inverse + tokens[:, None] * inverse_stride_token + head * inverse_stride_head + at[None, :]
    tl.store(at_inverse, result, mask=inside[:, None])


@triton.jit  # type: ignore[untyped-decorator]
def chunk_kernel(  # noqa: PLR0915  # one loop over a state in registers; calls would hide its order
    out: tl.tensor,
    query: tl.tensor,
    key: tl.tensor,
    value: tl.tensor,
    decay: tl.tensor,
    beta: tl.tensor,
    rate: tl.tensor,
    bias: tl.tensor,
    skip: tl.tensor,
    inverse: tl.tensor,
    cache: tl.tensor,
    cu_query_lens: tl.tensor,
    context_lens: tl.tensor,
    block_tables: tl.tensor,
    out_stride_token: tl.tensor,
    out_stride_head: tl.tensor,
    query_stride_token: tl.tensor,
    query_stride_head: tl.tensor,
    key_stride_token: tl.tensor,
    key_stride_head: tl.tensor,
    value_stride_token: tl.tensor,
    value_stride_head: tl.tensor,
    decay_stride_token: tl.tensor,
    decay_stride_head: tl.tensor,
    beta_stride_token: tl.tensor,
    beta_stride_head: tl.tensor,
    skip_stride_head: tl.tensor,
    skip_stride_value: tl.tensor,
    inverse_stride_token: tl.tensor,
    inverse_stride_head: tl.tensor,
    cache_stride_block: tl.tensor,
    cache_stride_head: tl.tensor,
    cache_stride_key: tl.tensor,
    cache_stride_value: tl.tensor,
    table_stride: tl.tensor,
    first_row: tl.tensor,
    block_size: tl.tensor,
    scale: tl.tensor,
    dt_min: tl.tensor,
    dt_max: tl.tensor,
    RATIO: tl.constexpr,
    K: tl.constexpr,
    K_PAD: tl.constexpr,
    V: tl.constexpr,
    BLOCK_V: tl.constexpr,
    L: tl.constexpr,
    TOKENS: tl.constexpr,
    DECAY: tl.constexpr,
    IS_DELTA: tl.constexpr,
    L2_NORM: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    HAS_SKIP: tl.constexpr,
    PRECISION: tl.constexpr,
) -> None:
    """One row, one head, one tile of its values, chunk by chunk. Grid (rows, heads, value tiles)."""
    row = tl.program_id(0).to(tl.int64) + first_row
    head = tl.program_id(1).to(tl.int64)
    at = tl.arange(0, TOKENS)
    keys = tl.arange(0, K_PAD)
    values = tl.program_id(2) * BLOCK_V + tl.arange(0, BLOCK_V)
    key_held, value_held = keys < K, values < V
    begin, end = row_tokens(cu_query_lens, row, False)
    context = tl.load(context_lens + row)
    first = begin.to(tl.int64)
    out += head * out_stride_head
    if context <= 0:
        for step in range(end - begin):
            at_out = out + (first + step) * out_stride_token + values
            tl.store(at_out, tl.zeros([BLOCK_V], dtype=tl.float32).to(out.dtype.element_ty), mask=value_held)
        return
    if begin == end:
        return
    computed = context - (end - begin)
    table = block_tables + row * table_stride
    held = key_held[:, None] & value_held[None, :]
    at_state = cache + head * cache_stride_head
    at_state += keys[:, None] * cache_stride_key + values[None, :] * cache_stride_value
    source = state_block(table, tl.maximum(computed - 1, 0), block_size)
    seen = held & (computed > 0)
    state = tl.load(at_state + source * cache_stride_block, mask=seen, other=0.0).to(tl.float32)
    query += (head // RATIO) * query_stride_head
    key += (head // RATIO) * key_stride_head
    value += head * value_stride_head
    for index in range(tl.cdiv(context, L) - computed // L):
        start, stop = _chunk(index, computed, context, L)
        inside = at < stop - start
        tokens = first + (start - computed) + at
        q = _tile(query, tokens, query_stride_token, keys, inside, key_held)
        k = _tile(key, tokens, key_stride_token, keys, inside, key_held)
        x = _tile(value, tokens, value_stride_token, values, inside, value_held)
        if L2_NORM:
            q, k = _unit(q), _unit(k)
        change = x
        if DECAY == SLOPE:
            amount = tl.where(inside, -tl.load(decay + head).to(tl.float32), 0.0)
        else:
            at_decay = decay + tokens * decay_stride_token + head * decay_stride_head
            amount = tl.load(at_decay, mask=inside, other=0.0).to(tl.float32)
        if DECAY == STEP_SIZE:
            amount = _step_size(amount, bias, head, dt_min, dt_max, HAS_BIAS)
            change = x * amount[:, None]
            amount = tl.where(inside, amount * tl.load(rate + head).to(tl.float32), 0.0)
        total = tl.cumsum(amount, axis=0)
        fade = tl.exp(total)[:, None]
        if IS_DELTA:
            at_beta = beta + tokens * beta_stride_token + head * beta_stride_head
            strength = tl.load(at_beta, mask=inside, other=0.0).to(tl.float32)
            known = tl.dot(k * fade, state, input_precision=PRECISION)
            system = _tile(
                inverse + head * inverse_stride_head, tokens, inverse_stride_token, at, inside, at < TOKENS
            )
            change = tl.dot(system, (x - known) * strength[:, None], input_precision=PRECISION)
        scores = tl.dot(q, tl.trans(k), input_precision=PRECISION) * _pair_decays(total, TOKENS, False)
        result = tl.dot(scores, change, input_precision=PRECISION)
        result += tl.dot(q * fade, state, input_precision=PRECISION)
        result = result * scale
        if HAS_SKIP:
            at_skip = skip + head * skip_stride_head + values * skip_stride_value
            result += x * tl.load(at_skip, mask=value_held, other=0.0).to(tl.float32)[None, :]
        left = tl.sum(amount, axis=0)
        late = k * tl.exp(left - total)[:, None]
        state = state * tl.exp(left) + tl.dot(tl.trans(late), change, input_precision=PRECISION)
        at_out = out + tokens[:, None] * out_stride_token + values[None, :]
        tl.store(at_out, result.to(out.dtype.element_ty), mask=inside[:, None] & value_held[None, :])
        if (stop % block_size == 0) | (stop == context):
            target = state_block(table, stop - 1, block_size)
            tl.store(at_state + target * cache_stride_block, state.to(cache.dtype.element_ty), mask=held)
