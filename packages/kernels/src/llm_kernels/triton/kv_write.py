"""Writes to the paged cache in Triton; knows nothing about who chose the slots."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from llm_kernels.checks import check_cache_scales, check_inner_contiguous, check_write_kv, check_write_latent
from llm_kernels.triton.dependent_launch import launch_options, let_later_start, wait_for_earlier
from llm_kernels.triton.launch_sizes import ceil_div

_BLOCK = 1024
_E4M3_MOST = tl.constexpr(448.0)


@triton.jit  # type: ignore[untyped-decorator]
def _as_stored(
    x: tl.tensor,
    scale: tl.tensor,
    head: tl.tensor,
    inside: tl.tensor,
    dtype: tl.constexpr,
    IS_E4M3: tl.constexpr,
    HAS_SCALES: tl.constexpr,
) -> tl.tensor:
    """Elements of keys or values as the cache holds them."""
    if IS_E4M3:
        x = x.to(tl.float32)
        if HAS_SCALES:
            x = x / tl.load(scale + head, mask=inside, other=1.0)
        x = tl.minimum(tl.maximum(x, -_E4M3_MOST), _E4M3_MOST)
    return x.to(dtype)


@triton.jit  # type: ignore[untyped-decorator]
def _write_kv_kernel(
    key: tl.tensor,
    value: tl.tensor,
    key_cache: tl.tensor,
    value_cache: tl.tensor,
    slot_mapping: tl.tensor,
    key_scale: tl.tensor,
    value_scale: tl.tensor,
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
    num_slots: tl.tensor,
    block_size: tl.tensor,
    num_heads: tl.tensor,
    head_size: tl.tensor,
    value_size: tl.tensor,
    BLOCK: tl.constexpr,
    IS_E4M3: tl.constexpr,
    HAS_SCALES: tl.constexpr,
    PDL: tl.constexpr,
) -> None:
    """One token, BLOCK elements of its keys and of its values. Grid (tokens, blocks of the wider of both)."""
    let_later_start(PDL)
    wait_for_earlier(PDL)
    token = tl.program_id(0).to(tl.int64)
    slot = tl.load(slot_mapping + token)
    if (slot >= 0) & (slot < num_slots):
        block = slot // block_size
        offset = slot % block_size
        element = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
        inside = element < num_heads * head_size
        head = element // head_size
        column = element % head_size
        from_key = key + token * key_stride_token + head * key_stride_head + column
        to_key = key_cache + block * key_cache_stride_block + offset * key_cache_stride_token
        copied = tl.load(from_key, mask=inside, other=0.0)
        copied = _as_stored(copied, key_scale, head, inside, key_cache.dtype.element_ty, IS_E4M3, HAS_SCALES)
        tl.store(to_key + head * key_cache_stride_head + column, copied, mask=inside)
        inside = element < num_heads * value_size
        head = element // value_size
        column = element % value_size
        from_value = value + token * value_stride_token + head * value_stride_head + column
        to_value = value_cache + block * value_cache_stride_block + offset * value_cache_stride_token
        copied = tl.load(from_value, mask=inside, other=0.0)
        copied = _as_stored(
            copied, value_scale, head, inside, value_cache.dtype.element_ty, IS_E4M3, HAS_SCALES
        )
        tl.store(to_value + head * value_cache_stride_head + column, copied, mask=inside)


@triton.jit  # type: ignore[untyped-decorator]
def _write_latent_kernel(
    latent: tl.tensor,
    latent_cache: tl.tensor,
    slot_mapping: tl.tensor,
    stride_token: tl.tensor,
    cache_stride_block: tl.tensor,
    cache_stride_token: tl.tensor,
    num_slots: tl.tensor,
    block_size: tl.tensor,
    size: tl.tensor,
    BLOCK: tl.constexpr,
    PDL: tl.constexpr,
) -> None:
    """One token. Grid (tokens, blocks of the latent)."""
    let_later_start(PDL)
    wait_for_earlier(PDL)
    token = tl.program_id(0).to(tl.int64)
    slot = tl.load(slot_mapping + token)
    if (slot >= 0) & (slot < num_slots):
        column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
        inside = column < size
        to = latent_cache + slot // block_size * cache_stride_block + slot % block_size * cache_stride_token
        copied = tl.load(latent + token * stride_token + column, mask=inside, other=0.0)
        tl.store(to + column, copied.to(latent_cache.dtype.element_ty), mask=inside)


def write_kv(
    key_TKD: torch.Tensor,
    value_TKV: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
    key_scale: torch.Tensor | None = None,
    value_scale: torch.Tensor | None = None,
) -> None:
    """Triton back end of `ops.write_kv`."""
    check_write_kv(key_TKD, value_TKV, key_cache, value_cache, slot_mapping)
    check_cache_scales(key_cache, key_scale, value_scale)
    check_inner_contiguous(
        key_TKD=key_TKD,
        value_TKV=value_TKV,
        key_cache=key_cache,
        value_cache=value_cache,
        slot_mapping=slot_mapping,
    )
    num_tokens, num_kv_heads, head_size = key_TKD.shape
    num_blocks, block_size = key_cache.shape[:2]
    if num_tokens == 0:
        return
    value_size = value_TKV.shape[2]
    num_elements = num_kv_heads * max(head_size, value_size)
    _write_kv_kernel[(num_tokens, ceil_div(num_elements, _BLOCK))](
        key_TKD,
        value_TKV,
        key_cache,
        value_cache,
        slot_mapping,
        key_TKD if key_scale is None else key_scale,
        key_TKD if value_scale is None else value_scale,
        key_TKD.stride(0),
        key_TKD.stride(1),
        value_TKV.stride(0),
        value_TKV.stride(1),
        key_cache.stride(0),
        key_cache.stride(1),
        key_cache.stride(2),
        value_cache.stride(0),
        value_cache.stride(1),
        value_cache.stride(2),
        num_blocks * block_size,
        block_size,
        num_kv_heads,
        head_size,
        value_size,
        BLOCK=_BLOCK,
        IS_E4M3=key_cache.dtype == torch.float8_e4m3fn,
        HAS_SCALES=key_scale is not None,
        num_warps=4,
        **launch_options(key_TKD.device),
    )


def write_latent(latent_TL: torch.Tensor, latent_cache: torch.Tensor, slot_mapping: torch.Tensor) -> None:
    """Triton back end of `ops.write_latent`."""
    check_write_latent(latent_TL, latent_cache, slot_mapping)
    check_inner_contiguous(latent_TL=latent_TL, latent_cache=latent_cache, slot_mapping=slot_mapping)
    num_tokens, size = latent_TL.shape
    num_blocks, block_size = latent_cache.shape[:2]
    if num_tokens == 0:
        return
    _write_latent_kernel[(num_tokens, ceil_div(size, _BLOCK))](
        latent_TL,
        latent_cache,
        slot_mapping,
        latent_TL.stride(0),
        latent_cache.stride(0),
        latent_cache.stride(1),
        num_blocks * block_size,
        block_size,
        size,
        BLOCK=_BLOCK,
        num_warps=4,
        **launch_options(latent_TL.device),
    )
