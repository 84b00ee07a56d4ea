"""The device code of decode attention in Triton: split keys, shared prefixes, and how the parts are combined.

All query heads of a KV head are rows of one tile, so that a key is loaded once for them; in the pass over a
shared prefix, those of many rows are. Lengths come from device memory, and grids follow from shapes alone.
A part is a normalised sum over some keys and its state: the log2 of its weight.
"""

from __future__ import annotations

import triton
import triton.language as tl

from llm_kernels.triton.attention_softmax import attend_keys, start_softmax
from llm_kernels.triton.dependent_launch import let_later_start, wait_for_earlier


@triton.jit  # type: ignore[untyped-decorator]
def split_keys(
    num_keys: tl.tensor, num_splits: tl.tensor, block_n: tl.tensor, least_blocks: tl.tensor
) -> tuple[tl.tensor, tl.tensor]:
    """The keys of a split, at least `least_blocks` times `block_n`, and how many splits have any."""
    num_blocks = tl.cdiv(num_keys, block_n)
    share = tl.maximum(tl.cdiv(num_blocks, num_splits), least_blocks)
    return share * block_n, tl.cdiv(num_blocks, share)


@triton.jit  # type: ignore[untyped-decorator]
def first_key(
    context: tl.tensor,
    window: tl.tensor,
    chunk: tl.tensor,
    HAS_WINDOW: tl.constexpr,
    HAS_CHUNK: tl.constexpr,
) -> tl.tensor:
    """The first key that the last token of a row sees."""
    first = 0
    if HAS_WINDOW:
        first = tl.maximum(context - window, 0)
    if HAS_CHUNK:
        first = tl.maximum(tl.maximum(context - 1, 0) // chunk * chunk, first)
    return first


@triton.jit  # type: ignore[untyped-decorator]
def state_of(maximum: tl.tensor, weight: tl.tensor) -> tl.tensor:
    """The log2 of the weight of a part; -inf where it holds no key."""
    return tl.where(weight == 0.0, float("-inf"), maximum + tl.log2(tl.where(weight == 0.0, 1.0, weight)))


@triton.jit  # type: ignore[untyped-decorator]
def add_parts(
    total: tl.tensor,
    maximum: tl.tensor,
    weight: tl.tensor,
    partial: tl.tensor,
    partial_state: tl.tensor,
    first_part: tl.tensor,
    num_parts: tl.tensor,
    valid: tl.tensor,
    V: tl.constexpr,
    V_PAD: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:
    """The online softmax after further parts, those of a row from `first_part` [M] on."""
    columns = tl.arange(0, V_PAD)
    inside = valid[:, None] & (columns < V)[None, :]
    for part in range(num_parts):
        at = first_part + part
        state = tl.load(partial_state + at, mask=valid, other=float("-inf"))
        others = tl.load(partial + at[:, None] * V + columns[None, :], mask=inside, other=0.0)
        new_maximum = tl.maximum(maximum, state)
        shift = tl.where(new_maximum == float("-inf"), 0.0, new_maximum)
        fade = tl.exp2(maximum - shift)
        share = tl.exp2(state - shift)
        total = total * fade[:, None] + others * share[:, None]
        weight = weight * fade + share
        maximum = new_maximum
    return total, maximum, weight


# Not compiled anew for what varies with the rows.
@triton.jit(do_not_specialize=["table_stride", "num_prefix_parts", "num_parts", "num_splits"])  # type: ignore[untyped-decorator]
def decode_kernel(
    out: tl.tensor,
    partial: tl.tensor,
    partial_state: tl.tensor,
    query: tl.tensor,
    key_cache: tl.tensor,
    value_cache: tl.tensor,
    context_lens: tl.tensor,
    prefix_lens: tl.tensor,
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
    num_prefix_parts: tl.tensor,
    num_parts: tl.tensor,
    num_splits: tl.tensor,
    scale: tl.tensor,
    soft_cap: tl.tensor,
    window: tl.tensor,
    chunk: tl.tensor,
    GROUP: tl.constexpr,
    D: tl.constexpr,
    D_PAD: tl.constexpr,
    V: tl.constexpr,
    V_PAD: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    LEAST_BLOCKS: tl.constexpr,
    HAS_WINDOW: tl.constexpr,
    HAS_CHUNK: tl.constexpr,
    HAS_SOFT_CAP: tl.constexpr,
    HAS_SINKS: tl.constexpr,
    HAS_ALIBI: tl.constexpr,
    HAS_CACHE_SCALES: tl.constexpr,
    HAS_PREFIX: tl.constexpr,
    IS_SPLIT: tl.constexpr,
    PRECISION: tl.constexpr,
    PDL: tl.constexpr,
) -> None:
    """One row, one KV head, one run of its keys. Grid (decode rows, KV heads, splits); row r is token r.

    The one query sees every key from `first` on. With HAS_PREFIX the keys before `prefix_lens` are those of
    the other pass, whose parts a kernel without IS_SPLIT adds to its own. A row whose keys are one part is
    written to `out`, others to `partial`.
    """
    let_later_start(PDL)
    wait_for_earlier(PDL)
    row = tl.program_id(0).to(tl.int64)
    kv_head = tl.program_id(1).to(tl.int64)
    split = tl.program_id(2)
    context = tl.load(context_lens + row)
    first = first_key(context, window, chunk, HAS_WINDOW, HAS_CHUNK)
    if HAS_PREFIX:
        first = tl.load(prefix_lens + row)
    share, used = split_keys(context - first, num_splits, BLOCK_N, LEAST_BLOCKS)
    # A row without keys has its zeros written by the first split.
    if split < tl.maximum(used, 1):
        key_begin = first + split * share
        key_end = tl.minimum(key_begin + share, context)
        member = tl.arange(0, BLOCK_M)
        columns = tl.arange(0, D_PAD)
        head = kv_head * GROUP + member
        query_tile = tl.load(
            query + row * query_stride_token + head[:, None] * query_stride_head + columns[None, :],
            mask=(member < GROUP)[:, None] & (columns < D)[None, :],
            other=0.0,
        )
        if HAS_CACHE_SCALES:
            scale *= tl.load(key_scale + kv_head)
        position = tl.zeros([BLOCK_M], dtype=tl.int32) + (context - 1)
        slope = tl.zeros([BLOCK_M], dtype=tl.float32)
        if HAS_ALIBI:
            slope = tl.load(slopes + head, mask=member < GROUP, other=0.0)
        # Of the splits one counts the sinks.
        total, maximum, weight = start_softmax(sinks, head, member < GROUP, BLOCK_M, V_PAD, HAS_SINKS)
        if HAS_SINKS and IS_SPLIT:
            maximum = tl.where(split == 0, maximum, float("-inf"))
            weight = tl.where(split == 0, weight, 0.0)
        total, maximum, weight = attend_keys(
            total,
            maximum,
            weight,
            query_tile,
            position,
            position,
            position,
            slope,
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
            D,
            D_PAD,
            V,
            V_PAD,
            BLOCK_N,
            BLOCK_SIZE,
            True,
            HAS_SOFT_CAP,
            HAS_ALIBI,
            PRECISION,
            True,
            False,
            False,
        )
        if HAS_CACHE_SCALES:
            total *= tl.load(value_scale + kv_head)
        value_columns = tl.arange(0, V_PAD)
        inside = (member < GROUP)[:, None] & (value_columns < V)[None, :]
        first_part = (row * tl.num_programs(1) * GROUP + head) * num_parts
        if HAS_PREFIX and not IS_SPLIT:
            total, maximum, weight = add_parts(
                total,
                maximum,
                weight,
                partial,
                partial_state,
                first_part,
                tl.where(first > 0, num_prefix_parts, 0),
                member < GROUP,
                V,
                V_PAD,
            )
        total = total / tl.where(weight == 0.0, 1.0, weight)[:, None]
        is_part = False
        if IS_SPLIT:
            is_part = used > 1
            if HAS_PREFIX:
                is_part = is_part | (first > 0)
        if is_part:
            at = first_part + num_prefix_parts + split
            tl.store(partial + at[:, None] * V + value_columns[None, :], total, mask=inside)
            tl.store(partial_state + at, state_of(maximum, weight), mask=member < GROUP)
        else:
            to = out + row * out_stride_token + head[:, None] * out_stride_head + value_columns[None, :]
            tl.store(to, total.to(out.dtype.element_ty), mask=inside)


# Not compiled anew for what varies with the rows.
@triton.jit(do_not_specialize=["table_stride", "num_groups", "num_prefix_parts", "num_parts"])  # type: ignore[untyped-decorator]
def prefix_kernel(
    partial: tl.tensor,
    partial_state: tl.tensor,
    query: tl.tensor,
    key_cache: tl.tensor,
    value_cache: tl.tensor,
    context_lens: tl.tensor,
    block_tables: tl.tensor,
    member_rows: tl.tensor,
    cu_members: tl.tensor,
    group_lens: tl.tensor,
    slopes: tl.tensor,
    key_scale: tl.tensor,
    value_scale: tl.tensor,
    query_stride_token: tl.tensor,
    query_stride_head: tl.tensor,
    key_stride_block: tl.tensor,
    key_stride_token: tl.tensor,
    key_stride_head: tl.tensor,
    value_stride_block: tl.tensor,
    value_stride_token: tl.tensor,
    value_stride_head: tl.tensor,
    table_stride: tl.tensor,
    num_groups: tl.tensor,
    num_prefix_parts: tl.tensor,
    num_parts: tl.tensor,
    scale: tl.tensor,
    soft_cap: tl.tensor,
    GROUP: tl.constexpr,
    D: tl.constexpr,
    D_PAD: tl.constexpr,
    V: tl.constexpr,
    V_PAD: tl.constexpr,
    BLOCK_Q: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    GROUPS: tl.constexpr,
    HAS_SOFT_CAP: tl.constexpr,
    HAS_ALIBI: tl.constexpr,
    HAS_CACHE_SCALES: tl.constexpr,
    PRECISION: tl.constexpr,
    PDL: tl.constexpr,
) -> None:
    """BLOCK_Q rows of a group, one KV head, one run of the keys they share.

    Grid (rows // BLOCK_Q + groups, KV heads, parts of the prefix). The keys are found through the table of
    the group's first row. Programs past a group's end do nothing.
    """
    let_later_start(PDL)
    wait_for_earlier(PDL)
    kv_head = tl.program_id(1).to(tl.int64)
    part = tl.program_id(2)
    # Group i begins at block (its first member) // BLOCK_Q + i, which leaves room for all its blocks.
    groups = tl.arange(0, GROUPS)
    is_group = groups < num_groups
    begins = tl.load(cu_members + groups, mask=is_group, other=0)
    ends = tl.load(cu_members + groups + 1, mask=is_group, other=0)
    lengths = tl.load(group_lens + groups, mask=is_group, other=0)
    is_before = is_group & (begins // BLOCK_Q + groups <= tl.program_id(0))
    is_own = groups == tl.sum(is_before.to(tl.int32), axis=0) - 1
    members_begin = tl.sum(tl.where(is_own, begins, 0), axis=0)
    members_end = tl.sum(tl.where(is_own, ends, 0), axis=0)
    length = tl.sum(tl.where(is_own, lengths, 0), axis=0)
    place = tl.program_id(0) - tl.sum(tl.where(is_own, begins // BLOCK_Q + groups, 0), axis=0)
    first_member = members_begin + place * BLOCK_Q
    if first_member < members_end:
        table_row = tl.load(member_rows + members_begin).to(tl.int64)
        share = tl.cdiv(tl.cdiv(length, BLOCK_N), num_prefix_parts) * BLOCK_N
        key_begin = tl.minimum(part * share, length)
        key_end = tl.minimum(key_begin + share, length)
        whole_end = key_begin + (key_end - key_begin) // BLOCK_N * BLOCK_N

        member = tl.arange(0, BLOCK_M)
        columns = tl.arange(0, D_PAD)
        at_member = first_member + member // GROUP
        valid = (member < BLOCK_Q * GROUP) & (at_member < members_end)
        row = tl.load(member_rows + at_member, mask=valid, other=0).to(tl.int64)
        head = kv_head * GROUP + member % GROUP
        query_tile = tl.load(
            query + row[:, None] * query_stride_token + head[:, None] * query_stride_head + columns[None, :],
            mask=valid[:, None] & (columns < D)[None, :],
            other=0.0,
        )
        if HAS_CACHE_SCALES:
            scale *= tl.load(key_scale + kv_head)
        position = tl.zeros([BLOCK_M], dtype=tl.int32)
        slope = tl.zeros([BLOCK_M], dtype=tl.float32)
        if HAS_ALIBI:
            position = tl.load(context_lens + row, mask=valid, other=1) - 1
            slope = tl.load(slopes + head, mask=valid, other=0.0)
        total, maximum, weight = start_softmax(slopes, head, valid, BLOCK_M, V_PAD, False)
        total, maximum, weight = attend_keys(
            total,
            maximum,
            weight,
            query_tile,
            position,
            position,
            position,
            slope,
            key_cache,
            value_cache,
            block_tables + table_row * table_stride,
            kv_head,
            key_begin,
            whole_end,
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
            True,
            HAS_SOFT_CAP,
            HAS_ALIBI,
            PRECISION,
            False,
            False,
            False,
        )
        total, maximum, weight = attend_keys(
            total,
            maximum,
            weight,
            query_tile,
            position,
            position,
            position,
            slope,
            key_cache,
            value_cache,
            block_tables + table_row * table_stride,
            kv_head,
            whole_end,
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
            True,
            HAS_SOFT_CAP,
            HAS_ALIBI,
            PRECISION,
            True,
            False,
            False,
        )
        total = total / tl.where(weight == 0.0, 1.0, weight)[:, None]
        if HAS_CACHE_SCALES:
            total *= tl.load(value_scale + kv_head)
        value_columns = tl.arange(0, V_PAD)
        at = (row * tl.num_programs(1) * GROUP + head) * num_parts + part
        inside = valid[:, None] & (value_columns < V)[None, :]
        tl.store(partial + at[:, None] * V + value_columns[None, :], total, mask=inside)
        tl.store(partial_state + at, state_of(maximum, weight), mask=valid)


# Not compiled anew for what varies with the rows.
@triton.jit(do_not_specialize=["num_prefix_parts", "num_splits"])  # type: ignore[untyped-decorator]
def combine_kernel(
    out: tl.tensor,
    partial: tl.tensor,
    partial_state: tl.tensor,
    context_lens: tl.tensor,
    prefix_lens: tl.tensor,
    out_stride_token: tl.tensor,
    out_stride_head: tl.tensor,
    num_prefix_parts: tl.tensor,
    num_splits: tl.tensor,
    block_n: tl.tensor,
    least_blocks: tl.tensor,
    window: tl.tensor,
    chunk: tl.tensor,
    V: tl.constexpr,
    BLOCK_V: tl.constexpr,
    PARTS: tl.constexpr,
    HAS_WINDOW: tl.constexpr,
    HAS_CHUNK: tl.constexpr,
    HAS_PREFIX: tl.constexpr,
    PDL: tl.constexpr,
) -> None:
    """The parts of one row and head, weighed and summed. Grid (decode rows, query heads, pieces of V).

    How many there are follows from the lengths, as in `decode_kernel`. A row of one part is not touched.
    """
    let_later_start(PDL)
    wait_for_earlier(PDL)
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    context = tl.load(context_lens + row)
    first = first_key(context, window, chunk, HAS_WINDOW, HAS_CHUNK)
    begin = num_prefix_parts
    if HAS_PREFIX:
        first = tl.load(prefix_lens + row)
        begin = tl.where(first > 0, 0, num_prefix_parts)
    _, used = split_keys(context - first, num_splits, block_n, least_blocks)
    end = num_prefix_parts + used
    if (end > num_prefix_parts + 1) | (begin < num_prefix_parts):
        part = tl.arange(0, PARTS)
        columns = tl.program_id(2) * BLOCK_V + tl.arange(0, BLOCK_V)
        held = (part >= begin) & (part < end)
        at = (row * tl.num_programs(1) + head) * (num_prefix_parts + num_splits) + part
        state = tl.load(partial_state + at, mask=held, other=float("-inf"))
        best = tl.max(state, axis=0)
        share = tl.exp2(state - tl.where(best == float("-inf"), 0.0, best))
        inside = held[:, None] & (columns < V)[None, :]
        sums = tl.load(partial + at[:, None] * V + columns[None, :], mask=inside, other=0.0)
        norm = tl.sum(share, axis=0)
        total = tl.sum(sums * share[:, None], axis=0) / tl.where(norm == 0.0, 1.0, norm)
        to = out + row * out_stride_token + head * out_stride_head + columns
        tl.store(to, total.to(out.dtype.element_ty), mask=columns < V)
