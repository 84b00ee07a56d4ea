"""Launches attention over latents (MLA) in Triton: tiles, splits of keys, grids. Device code is beside it."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch

from llm_kernels.checks import check_inner_contiguous, check_latent_attention
from llm_kernels.metadata import AttentionMetadata
from llm_kernels.triton.attention_arguments import Tile, num_processors, padded, precision
from llm_kernels.triton.attention_decode import LEAST_KEYS_PER_SPLIT, combine, num_splits, partials
from llm_kernels.triton.dependent_launch import launch_options
from llm_kernels.triton.latent_attention_kernels import latent_decode_kernel, latent_prefill_kernel
from llm_kernels.triton.launch_sizes import ceil_div


@lru_cache
def latent_decode_tile(dtype: torch.dtype, num_heads: int) -> Tile:
    """Tile of the decode kernel: heads of one token."""
    if dtype == torch.float32:
        return Tile(block_m=16, block_n=16, num_warps=4, num_stages=2)
    if num_heads <= 32:
        return Tile(block_m=padded(num_heads), block_n=32, num_warps=4, num_stages=2)
    return Tile(block_m=64, block_n=32, num_warps=8, num_stages=2)


@lru_cache
def latent_prefill_tile(dtype: torch.dtype) -> Tile:
    """Tile of the prefill kernel: pairs of a token and a head."""
    if dtype == torch.float32:
        return Tile(block_m=16, block_n=16, num_warps=4, num_stages=2)
    return Tile(block_m=64, block_n=32, num_warps=8, num_stages=2)


def latent_attention(
    out_THR: torch.Tensor,
    query_THL: torch.Tensor,
    latent_cache: torch.Tensor,
    metadata: AttentionMetadata,
    scale: float,
    value_size: int,
) -> None:
    """Triton back end of `ops.latent_attention`."""
    check_latent_attention(out_THR, query_THL, latent_cache, metadata, value_size)
    check_inner_contiguous(
        out_THR=out_THR,
        query_THL=query_THL,
        latent_cache=latent_cache,
        block_tables=metadata.block_tables,
        context_lens=metadata.context_lens,
        cu_query_lens=metadata.cu_query_lens,
    )
    if metadata.num_decodes > 0:
        _decode(out_THR, query_THL, latent_cache, metadata, scale)
    if metadata.context_lens.numel() > metadata.num_decodes:
        prefill(out_THR, query_THL, latent_cache, metadata, scale, first_row=metadata.num_decodes)


def _constants(
    out: torch.Tensor, query: torch.Tensor, latent_cache: torch.Tensor, tile: Tile
) -> dict[str, Any]:
    """The compile-time arguments both kernels share."""
    value_size = out.shape[2]
    rope_size = query.shape[2] - value_size
    return {
        "H": query.shape[1],
        "R": value_size,
        "R_PAD": padded(value_size),
        "P": rope_size,
        "P_PAD": padded(rope_size),
        "BLOCK_M": tile.block_m,
        "BLOCK_N": tile.block_n,
        "BLOCK_SIZE": latent_cache.shape[1],
        "PRECISION": precision(query.dtype),
        "num_warps": tile.num_warps,
        "num_stages": tile.num_stages,
    }


def _decode(
    out: torch.Tensor,
    query: torch.Tensor,
    latent_cache: torch.Tensor,
    metadata: AttentionMetadata,
    scale: float,
) -> None:
    num_rows, num_heads = metadata.num_decodes, query.shape[1]
    tile = latent_decode_tile(query.dtype, num_heads)
    head_blocks = ceil_div(num_heads, tile.block_m)
    splits = num_splits(num_rows * head_blocks, num_processors(query.device))
    least_blocks = ceil_div(LEAST_KEYS_PER_SPLIT, tile.block_n)
    partial, state = partials(out, num_rows, splits if splits > 1 else 0)
    latent_decode_kernel[(num_rows, head_blocks, splits)](
        out,
        partial,
        state,
        query,
        latent_cache,
        metadata.context_lens,
        metadata.block_tables,
        *out.stride()[:2],
        *query.stride()[:2],
        *latent_cache.stride()[:2],
        metadata.block_tables.stride(0),
        splits,
        scale,
        LEAST_BLOCKS=least_blocks,
        IS_SPLIT=splits > 1,
        **_constants(out, query, latent_cache, tile),
        **launch_options(query.device),
    )
    if splits > 1:
        combine(out, partial, state, metadata.context_lens, tile.block_n, least_blocks, splits)


def prefill(
    out: torch.Tensor,
    query: torch.Tensor,
    latent_cache: torch.Tensor,
    metadata: AttentionMetadata,
    scale: float,
    *,
    first_row: int,
    **options: object,
) -> None:
    """The rows from `first_row` on, each of whose earlier rows is one token; `options` of the compiler."""
    num_rows = metadata.context_lens.numel() - first_row
    tile = latent_prefill_tile(query.dtype)
    num_pairs = (query.shape[0] - first_row) * query.shape[1]
    latent_prefill_kernel[(num_pairs // tile.block_m + num_rows,)](
        out,
        query,
        latent_cache,
        metadata.cu_query_lens,
        metadata.context_lens,
        metadata.block_tables,
        *out.stride()[:2],
        *query.stride()[:2],
        *latent_cache.stride()[:2],
        metadata.block_tables.stride(0),
        first_row,
        num_rows,
        scale,
        **_constants(out, query, latent_cache, tile),
        **options,
    )
