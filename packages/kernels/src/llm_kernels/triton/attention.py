"""Launches paged and packed attention in Triton: checks, decode and prefill rows. Device code is beside it.

Grids and tile sizes follow from shapes alone, so that a launch can be captured in a graph.
"""

from __future__ import annotations

from functools import lru_cache

import torch

from llm_kernels.checks import (
    check_attention,
    check_cache_scales,
    check_inner_contiguous,
    check_scoring,
    check_shared_prefix,
    check_varlen,
)
from llm_kernels.metadata import AttentionMetadata
from llm_kernels.triton.attention_arguments import Arguments, Tile, padded
from llm_kernels.triton.attention_decode import decode
from llm_kernels.triton.attention_kernels import prefill_kernel
from llm_kernels.triton.launch_sizes import power_of_2


@lru_cache
def prefill_tile(dtype: torch.dtype, head_size: int, group: int) -> Tile:
    """Tile of the prefill kernel: a block of query tokens times the grouped heads."""
    least = power_of_2(group)
    width = padded(head_size)
    if dtype == torch.float32:
        return Tile(block_m=max(32, least), block_n=32 if width <= 128 else 16, num_warps=4, num_stages=2)
    # The best of eleven tiles on an H200 (docs/performance.md): 319 TFLOP/s at head size 128, 183 at 64.
    if width <= 64:
        return Tile(block_m=max(64, least), block_n=64, num_warps=4, num_stages=3)
    if width <= 128:
        return Tile(block_m=max(128, least), block_n=128, num_warps=8, num_stages=3)
    return Tile(block_m=max(64, least), block_n=32, num_warps=8, num_stages=2)


def paged_attention(
    out_THV: torch.Tensor,
    query_THD: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    metadata: AttentionMetadata,
    scale: float,
    sliding_window: int | None,
    soft_cap: float | None,
    chunk: int | None,
    sinks: torch.Tensor | None,
    alibi_slopes: torch.Tensor | None,
    causal: bool,
    _distance_bias: None = None,
    key_scale: torch.Tensor | None = None,
    value_scale: torch.Tensor | None = None,
) -> None:
    """Triton back end of `ops.paged_attention`; the registry keeps calls with a bias away."""
    check_attention(out_THV, query_THD, key_cache, value_cache, metadata)
    check_scoring(query_THD, sliding_window, soft_cap, chunk, sinks, alibi_slopes, causal)
    check_cache_scales(key_cache, key_scale, value_scale)
    check_shared_prefix(metadata, query_THD.device)
    check_inner_contiguous(
        out_THV=out_THV,
        query_THD=query_THD,
        key_cache=key_cache,
        value_cache=value_cache,
        block_tables=metadata.block_tables,
        context_lens=metadata.context_lens,
        cu_query_lens=metadata.cu_query_lens,
    )
    arguments = Arguments(
        out=out_THV,
        query=query_THD,
        keys=key_cache,
        values=value_cache,
        scale=scale,
        sliding_window=sliding_window,
        soft_cap=soft_cap,
        chunk=chunk,
        sinks=sinks,
        alibi_slopes=alibi_slopes,
        causal=causal,
        key_scale=key_scale,
        value_scale=value_scale,
    )
    num_rows, num_decodes = metadata.context_lens.numel(), metadata.num_decodes
    if num_decodes > 0:
        decode(arguments, metadata)
    if num_rows > num_decodes:
        prefill(
            arguments,
            metadata.cu_query_lens,
            metadata.context_lens,
            metadata.block_tables,
            num_decodes,
            num_rows - num_decodes,
        )


def varlen_attention(
    out_THV: torch.Tensor,
    query_THD: torch.Tensor,
    key_SKD: torch.Tensor,
    value_SKV: torch.Tensor,
    cu_query_lens: torch.Tensor,
    cu_key_lens: torch.Tensor,
    _max_query_len: int,
    _max_key_len: int,
    scale: float,
    causal: bool,
    sliding_window: int | None,
    soft_cap: float | None,
    alibi_slopes: torch.Tensor | None,
    _bias: object,
) -> None:
    """Triton back end of `ops.varlen_attention`; the registry keeps calls with a bias away."""
    check_varlen(out_THV, query_THD, key_SKD, value_SKV, cu_query_lens, cu_key_lens)
    check_scoring(query_THD, sliding_window, soft_cap, alibi_slopes=alibi_slopes)
    check_inner_contiguous(
        out_THV=out_THV,
        query_THD=query_THD,
        key_SKD=key_SKD,
        value_SKV=value_SKV,
        cu_query_lens=cu_query_lens,
        cu_key_lens=cu_key_lens,
    )
    arguments = Arguments(
        out=out_THV,
        query=query_THD,
        keys=key_SKD.unsqueeze(0),
        values=value_SKV.unsqueeze(0),
        scale=scale,
        sliding_window=sliding_window,
        soft_cap=soft_cap,
        chunk=None,
        sinks=None,
        alibi_slopes=alibi_slopes,
        causal=causal,
    )
    num_rows = cu_query_lens.numel() - 1
    if num_rows > 0:
        prefill(arguments, cu_query_lens, cu_key_lens, None, 0, num_rows)


def prefill(
    a: Arguments,
    cu_query_lens: torch.Tensor,
    context_lens: torch.Tensor,
    block_tables: torch.Tensor | None,
    first_row: int,
    num_rows: int,
) -> None:
    """The rows from `first_row` on, each of whose earlier rows is one token."""
    tile = prefill_tile(a.query.dtype, a.widest, a.group)
    block_q = tile.block_m // a.group
    num_tokens = a.query.shape[0] - first_row
    constants = a.constants(tile)
    if block_tables is None:
        constants["BLOCK_SIZE"] = 1  # not the number of keys, for each of which there would be a kernel
    prefill_kernel[(num_tokens // block_q + num_rows, a.keys.shape[2])](
        a.out,
        a.query,
        a.keys,
        a.values,
        cu_query_lens,
        context_lens,
        cu_query_lens if block_tables is None else block_tables,
        *a.per_head(),
        *a.strides(),
        0 if block_tables is None else block_tables.stride(0),
        first_row,
        num_rows,
        *a.scores(),
        BLOCK_Q=block_q,
        IS_PAGED=block_tables is not None,
        IS_CAUSAL=a.causal,
        **constants,
    )
