"""Norms of heads, rotation and the write to the paged cache in one Triton launch; knows nothing about models.

A part is a few heads of one token: of the query (written back), of the key or of the value (written to the
cache). A program takes one part where tokens are few, and all parts of a token where they are many, so that
each is large enough. A head is read once; all arithmetic is float32.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from llm_kernels.attention_input_checks import check_rotate_write_kv
from llm_kernels.checks import check_cache_scales, check_inner_contiguous
from llm_kernels.invariance import is_batch_invariance_wanted
from llm_kernels.triton.dependent_launch import launch_options, let_later_start, wait_for_earlier
from llm_kernels.triton.launch_sizes import ceil_div, power_of_2

# Measured on an H200 with heads of 128 (benchmarks/gpu/small_kernels.py).
_MANY_TOKENS = 1024
_SOME_TOKENS = 16

_E4M3_MOST = tl.constexpr(448.0)


@triton.jit  # type: ignore[untyped-decorator]
def _as_stored(
    x: tl.tensor, divisor: tl.tensor, dtype: tl.constexpr, IS_E4M3: tl.constexpr, HAS_SCALES: tl.constexpr
) -> tl.tensor:
    """Values as their destination holds them; an e4m3 cache holds them divided, and within its range."""
    if IS_E4M3:
        x = x.to(tl.float32)
        if HAS_SCALES:
            x = x / divisor
        x = tl.minimum(tl.maximum(x, -_E4M3_MOST), _E4M3_MOST)
    return x.to(dtype)


@triton.jit  # type: ignore[untyped-decorator]
def _norm_and_turn(
    x: tl.tensor,
    to: tl.tensor,
    weight: tl.tensor,
    table: tl.tensor,
    inside: tl.tensor,
    half: tl.tensor,
    head_size: tl.tensor,
    eps: tl.tensor,
    divisor: tl.tensor,
    HAS_NORM: tl.constexpr,
    HAS_WEIGHT: tl.constexpr,
    INTERLEAVED: tl.constexpr,
    HALF: tl.constexpr,
    REST: tl.constexpr,
    IS_E4M3: tl.constexpr,
    HAS_SCALES: tl.constexpr,
) -> None:
    """Heads from the row pointers `x` to the row pointers `to` (both [HEADS, 1]); `inside` masks heads."""
    square = tl.zeros(inside.shape, dtype=tl.float32)
    if HALF > 0:
        columns = tl.arange(0, HALF)[None, :]
        is_turned = inside & (columns < half)
        first, second = columns, half + columns
        if INTERLEAVED:
            first, second = 2 * columns, 2 * columns + 1
        a = tl.load(x + first, mask=is_turned, other=0.0).to(tl.float32)
        b = tl.load(x + second, mask=is_turned, other=0.0).to(tl.float32)
        cos = tl.load(table + columns, mask=columns < half, other=0.0).to(tl.float32)
        sin = tl.load(table + half + columns, mask=columns < half, other=0.0).to(tl.float32)
        if HAS_NORM:
            square += tl.sum(a * a + b * b, axis=1)[:, None]
    if REST > 0:
        others = 2 * half + tl.arange(0, REST)[None, :]
        is_other = inside & (others < head_size)
        rest = tl.load(x + others, mask=is_other, other=0.0).to(tl.float32)
        if HAS_NORM:
            square += tl.sum(rest * rest, axis=1)[:, None]
    if HAS_NORM:
        factor = tl.rsqrt(square / head_size + eps)
    if HALF > 0:
        if HAS_NORM:
            a *= factor
            b *= factor
        if HAS_WEIGHT:
            a *= tl.load(weight + first, mask=columns < half, other=0.0).to(tl.float32)
            b *= tl.load(weight + second, mask=columns < half, other=0.0).to(tl.float32)
        turned = _as_stored(a * cos - b * sin, divisor, to.dtype.element_ty, IS_E4M3, HAS_SCALES)
        tl.store(to + first, turned, mask=is_turned)
        turned = _as_stored(b * cos + a * sin, divisor, to.dtype.element_ty, IS_E4M3, HAS_SCALES)
        tl.store(to + second, turned, mask=is_turned)
    if REST > 0:
        if HAS_NORM:
            rest *= factor
        if HAS_WEIGHT:
            rest *= tl.load(weight + others, mask=others < head_size, other=0.0).to(tl.float32)
        rest = _as_stored(rest, divisor, to.dtype.element_ty, IS_E4M3, HAS_SCALES)
        tl.store(to + others, rest, mask=is_other)


@triton.jit  # type: ignore[untyped-decorator]
def _rotate_write_kernel(
    query: tl.tensor,
    key: tl.tensor,
    value: tl.tensor,
    key_cache: tl.tensor,
    value_cache: tl.tensor,
    positions: tl.tensor,
    slot_mapping: tl.tensor,
    cos_sin: tl.tensor,
    query_weight: tl.tensor,
    key_weight: tl.tensor,
    key_scale: tl.tensor,
    value_scale: tl.tensor,
    query_stride_token: tl.tensor,
    query_stride_head: tl.tensor,
    key_stride_token: tl.tensor,
    key_stride_head: tl.tensor,
    value_stride_token: tl.tensor,
    value_stride_head: tl.tensor,
    key_cache_stride_block: tl.tensor,
    key_cache_stride_token: tl.tensor,
    key_cache_stride_head: tl.tensor,
    value_cache_stride_block: tl.tensor,
    value_cache_stride_token: tl.tensor,
    value_cache_stride_head: tl.tensor,
    cos_sin_stride: tl.tensor,
    num_heads: tl.tensor,
    num_kv_heads: tl.tensor,
    num_slots: tl.tensor,
    block_size: tl.tensor,
    half: tl.tensor,
    head_size: tl.tensor,
    value_size: tl.tensor,
    eps: tl.tensor,
    HAS_NORM: tl.constexpr,
    HAS_QUERY_WEIGHT: tl.constexpr,
    HAS_KEY_WEIGHT: tl.constexpr,
    INTERLEAVED: tl.constexpr,
    HEADS: tl.constexpr,
    PARTS: tl.constexpr,
    HALF: tl.constexpr,
    REST: tl.constexpr,
    VALUE: tl.constexpr,
    IS_E4M3: tl.constexpr,
    HAS_SCALES: tl.constexpr,
    PDL: tl.constexpr,
) -> None:
    """Grid (tokens, programs of PARTS parts): the query's, then the keys', then the values'."""
    let_later_start(PDL)
    token = tl.program_id(0).to(tl.int64)
    query_parts = tl.cdiv(num_heads, HEADS)
    kv_parts = tl.cdiv(num_kv_heads, HEADS)
    wait_for_earlier(PDL)
    table = cos_sin
    if HALF > 0:
        table += tl.load(positions + token) * cos_sin_stride
    slot = tl.load(slot_mapping + token)
    is_written = (slot >= 0) & (slot < num_slots)
    key_to = key_cache + slot // block_size * key_cache_stride_block
    key_to += slot % block_size * key_cache_stride_token
    value_to = value_cache + slot // block_size * value_cache_stride_block
    value_to += slot % block_size * value_cache_stride_token
    for part in range(tl.program_id(1) * PARTS, tl.program_id(1) * PARTS + PARTS):
        if part < query_parts:
            heads = (part * HEADS + tl.arange(0, HEADS))[:, None]
            row = query + token * query_stride_token + heads.to(tl.int64) * query_stride_head
            _norm_and_turn(
                row,
                row,
                query_weight,
                table,
                heads < num_heads,
                half,
                head_size,
                eps,
                eps,
                HAS_NORM,
                HAS_QUERY_WEIGHT,
                INTERLEAVED,
                HALF,
                REST,
                False,
                False,
            )
        elif is_written:
            if part < query_parts + kv_parts:
                heads = ((part - query_parts) * HEADS + tl.arange(0, HEADS))[:, None]
                wide = heads.to(tl.int64)
                divisor = eps
                if HAS_SCALES:
                    divisor = tl.load(key_scale + heads, mask=heads < num_kv_heads, other=1.0)
                _norm_and_turn(
                    key + token * key_stride_token + wide * key_stride_head,
                    key_to + wide * key_cache_stride_head,
                    key_weight,
                    table,
                    heads < num_kv_heads,
                    half,
                    head_size,
                    eps,
                    divisor,
                    HAS_NORM,
                    HAS_KEY_WEIGHT,
                    INTERLEAVED,
                    HALF,
                    REST,
                    IS_E4M3,
                    HAS_SCALES,
                )
            else:
                heads = ((part - query_parts - kv_parts) * HEADS + tl.arange(0, HEADS))[:, None]
                wide = heads.to(tl.int64)
                columns = tl.arange(0, VALUE)[None, :]
                inside = (heads < num_kv_heads) & (columns < value_size)
                row = value + token * value_stride_token + wide * value_stride_head + columns
                divisor = eps
                if HAS_SCALES:
                    divisor = tl.load(value_scale + heads, mask=heads < num_kv_heads, other=1.0)
                copied = tl.load(row, mask=inside, other=0.0)
                copied = _as_stored(copied, divisor, value_cache.dtype.element_ty, IS_E4M3, HAS_SCALES)
                tl.store(value_to + wide * value_cache_stride_head + columns, copied, mask=inside)


def rotate_write_kv(
    query_THD: torch.Tensor,
    key_TKD: torch.Tensor,
    value_TKV: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    positions: torch.Tensor,
    slot_mapping: torch.Tensor,
    cos_sin_cache: torch.Tensor | None,
    query_weight: torch.Tensor | None,
    key_weight: torch.Tensor | None,
    eps: float | None,
    interleaved: bool,
    key_scale: torch.Tensor | None = None,
    value_scale: torch.Tensor | None = None,
) -> None:
    """Triton back end of `ops.rotate_write_kv`; it does not round between its steps."""
    check_rotate_write_kv(
        query_THD,
        key_TKD,
        value_TKV,
        key_cache,
        value_cache,
        positions,
        slot_mapping,
        cos_sin_cache,
        query_weight,
        key_weight,
        eps,
    )
    check_cache_scales(key_cache, key_scale, value_scale)
    check_inner_contiguous(
        query_THD=query_THD,
        key_TKD=key_TKD,
        value_TKV=value_TKV,
        key_cache=key_cache,
        value_cache=value_cache,
        slot_mapping=slot_mapping,
        positions=positions,
    )
    for field, given in (
        ("cos_sin_cache", cos_sin_cache),
        ("query_weight", query_weight),
        ("key_weight", key_weight),
    ):
        if given is not None:
            check_inner_contiguous(**{field: given})
    num_tokens, num_heads, head_size = query_THD.shape
    num_kv_heads, value_size = value_TKV.shape[1:]
    if num_tokens == 0:
        return
    half = 0 if cos_sin_cache is None else cos_sin_cache.shape[1] // 2
    num_rest = head_size - 2 * half
    # The sum of a norm follows the threads that share a head.
    like_tokens = _SOME_TOKENS if is_batch_invariance_wanted() else num_tokens
    heads = heads_per_part(like_tokens, head_size)
    num_parts = ceil_div(num_heads, heads) + 2 * ceil_div(num_kv_heads, heads)
    parts = parts_per_program(like_tokens, num_parts)
    _rotate_write_kernel[(num_tokens, ceil_div(num_parts, parts))](
        query_THD,
        key_TKD,
        value_TKV,
        key_cache,
        value_cache,
        positions,
        slot_mapping,
        query_THD if cos_sin_cache is None else cos_sin_cache,
        query_THD if query_weight is None else query_weight,
        key_TKD if key_weight is None else key_weight,
        key_TKD if key_scale is None else key_scale,
        key_TKD if value_scale is None else value_scale,
        *query_THD.stride()[:2],
        *key_TKD.stride()[:2],
        *value_TKV.stride()[:2],
        *key_cache.stride()[:3],
        *value_cache.stride()[:3],
        0 if cos_sin_cache is None else cos_sin_cache.stride(0),
        num_heads,
        num_kv_heads,
        key_cache.shape[0] * key_cache.shape[1],
        key_cache.shape[1],
        half,
        head_size,
        value_size,
        0.0 if eps is None else eps,
        HAS_NORM=eps is not None,
        HAS_QUERY_WEIGHT=query_weight is not None,
        HAS_KEY_WEIGHT=key_weight is not None,
        INTERLEAVED=interleaved,
        HEADS=heads,
        PARTS=parts,
        HALF=power_of_2(half) if half else 0,
        REST=power_of_2(num_rest) if num_rest else 0,
        VALUE=power_of_2(value_size),
        IS_E4M3=key_cache.dtype == torch.float8_e4m3fn,
        HAS_SCALES=key_scale is not None,
        num_warps=num_warps(heads, head_size, like_tokens),
        **launch_options(query_THD.device),
    )


def heads_per_part(num_tokens: int, head_size: int) -> int:
    """One for a single token, so that it has many programs; else 1,024 elements' worth."""
    return 1 if num_tokens == 1 else max(1, min(8, 1024 // power_of_2(head_size)))


def parts_per_program(num_tokens: int, num_parts: int) -> int:
    """All parts of a token where tokens are many."""
    return num_parts if num_tokens >= _MANY_TOKENS else 1


def num_warps(heads: int, head_size: int, num_tokens: int) -> int:
    """Warps of a program: eight elements of a part a thread, sixteen where tokens are many."""
    elements = heads * power_of_2(head_size)
    return max(1, min(8, elements // (512 if num_tokens >= _MANY_TOKENS else 256)))
