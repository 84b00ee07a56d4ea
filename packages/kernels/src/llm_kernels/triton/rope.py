"""Rotary embedding in Triton; knows nothing about how the table of cosines and sines came to be."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from llm_kernels.checks import check_inner_contiguous, check_rope
from llm_kernels.triton.dependent_launch import launch_options, let_later_start, wait_for_earlier
from llm_kernels.triton.launch_sizes import ceil_div, power_of_2

_HEADS = 8


@triton.jit  # type: ignore[untyped-decorator]
def _rotate(
    x: tl.tensor,
    stride_token: tl.tensor,
    stride_head: tl.tensor,
    num_heads: tl.tensor,
    token: tl.tensor,
    head_block: tl.tensor,
    cos: tl.tensor,
    sin: tl.tensor,
    half: tl.tensor,
    INTERLEAVED: tl.constexpr,
    HEADS: tl.constexpr,
    HALF: tl.constexpr,
) -> None:
    heads = (head_block * HEADS + tl.arange(0, HEADS))[:, None]
    columns = tl.arange(0, HALF)[None, :]
    inside = (heads < num_heads) & (columns < half)
    row = x + token * stride_token + heads.to(tl.int64) * stride_head
    if INTERLEAVED:
        first, second = row + 2 * columns, row + 2 * columns + 1
    else:
        first, second = row + columns, row + half + columns
    a = tl.load(first, mask=inside, other=0.0).to(tl.float32)
    b = tl.load(second, mask=inside, other=0.0).to(tl.float32)
    tl.store(first, (a * cos - b * sin).to(x.dtype.element_ty), mask=inside)
    tl.store(second, (b * cos + a * sin).to(x.dtype.element_ty), mask=inside)


@triton.jit  # type: ignore[untyped-decorator]
def _rotary_kernel(
    query: tl.tensor,
    key: tl.tensor,
    positions: tl.tensor,
    cos_sin: tl.tensor,
    query_stride_token: tl.tensor,
    query_stride_head: tl.tensor,
    key_stride_token: tl.tensor,
    key_stride_head: tl.tensor,
    cos_sin_stride: tl.tensor,
    num_heads: tl.tensor,
    num_kv_heads: tl.tensor,
    half: tl.tensor,
    INTERLEAVED: tl.constexpr,
    HEADS: tl.constexpr,
    HALF: tl.constexpr,
    PDL: tl.constexpr,
) -> None:
    let_later_start(PDL)
    wait_for_earlier(PDL)
    token = tl.program_id(0).to(tl.int64)
    head_block = tl.program_id(1)
    table = cos_sin + tl.load(positions + token) * cos_sin_stride
    columns = tl.arange(0, HALF)[None, :]
    cos = tl.load(table + columns, mask=columns < half, other=0.0).to(tl.float32)
    sin = tl.load(table + half + columns, mask=columns < half, other=0.0).to(tl.float32)
    _rotate(
        query,
        query_stride_token,
        query_stride_head,
        num_heads,
        token,
        head_block,
        cos,
        sin,
        half,
        INTERLEAVED,
        HEADS,
        HALF,
    )
    _rotate(
        key,
        key_stride_token,
        key_stride_head,
        num_kv_heads,
        token,
        head_block,
        cos,
        sin,
        half,
        INTERLEAVED,
        HEADS,
        HALF,
    )


def rotary_embedding(
    query_THD: torch.Tensor,
    key_TKD: torch.Tensor,
    positions: torch.Tensor,
    cos_sin_cache: torch.Tensor,
    interleaved: bool,
) -> None:
    """Triton back end of `ops.rotary_embedding`."""
    check_rope(query_THD, key_TKD, positions, cos_sin_cache)
    check_inner_contiguous(
        query_THD=query_THD, key_TKD=key_TKD, cos_sin_cache=cos_sin_cache, positions=positions
    )
    num_tokens, num_heads = query_THD.shape[:2]
    half = cos_sin_cache.shape[1] // 2
    if num_tokens == 0 or half == 0:
        return
    num_kv_heads = key_TKD.shape[1]
    _rotary_kernel[(num_tokens, ceil_div(max(num_heads, num_kv_heads), _HEADS))](
        query_THD,
        key_TKD,
        positions,
        cos_sin_cache,
        query_THD.stride(0),
        query_THD.stride(1),
        key_TKD.stride(0),
        key_TKD.stride(1),
        cos_sin_cache.stride(0),
        num_heads,
        num_kv_heads,
        half,
        INTERLEAVED=interleaved,
        HEADS=_HEADS,
        HALF=power_of_2(half),
        num_warps=2,
        **launch_options(query_THD.device),
    )
