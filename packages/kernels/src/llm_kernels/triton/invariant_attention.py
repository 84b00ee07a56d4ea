"""Launches batch-invariant attention in Triton: one kernel for prompts and decode rows, which lies beside it.

Tiles of keys and segments of tiles lie at fixed positions of a sequence; what depends on shapes is only how
many programs share a row's segments.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch

from llm_kernels.checks import (
    check_attention,
    check_cache_scales,
    check_inner_contiguous,
    check_scoring,
)
from llm_kernels.metadata import AttentionMetadata
from llm_kernels.triton.attention_arguments import Arguments, Tile, num_processors, padded
from llm_kernels.triton.dependent_launch import launch_options
from llm_kernels.triton.invariant_attention_kernels import attention_kernel, merge_kernel
from llm_kernels.triton.launch_sizes import ceil_div, power_of_2

SEGMENT = 512
"""Keys of a segment."""
# Most bytes of segments that are written down; with more, each row's are merged in registers.
_MOST_PARTIAL_BYTES = 64 * 2**20
# Programs that a multiprocessor should have.
_PROGRAMS_PER_PROCESSOR = 4


@lru_cache
def tiles(dtype: torch.dtype, head_size: int, group: int) -> tuple[Tile, Tile]:
    """Tiles of prompts and of decode rows; keys and the warps of a row are the same in both."""
    width = padded(head_size)
    least = power_of_2(group)
    if dtype == torch.float32:
        tile = Tile(block_m=max(32, least), block_n=32 if width <= 128 else 16, num_warps=4, num_stages=2)
        return tile, tile
    small = Tile(block_m=max(64, least), block_n=64, num_warps=4, num_stages=2)
    if width <= 128 and least <= 64:
        return Tile(block_m=128, block_n=64, num_warps=8, num_stages=3), small
    return small, small


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
    """Batch-invariant back end of `ops.paged_attention`; shared prefixes are read row by row."""
    check_attention(out_THV, query_THD, key_cache, value_cache, metadata)
    check_scoring(query_THD, sliding_window, soft_cap, chunk, sinks, alibi_slopes, causal)
    check_cache_scales(key_cache, key_scale, value_scale)
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
        key_scale=key_scale,
        value_scale=value_scale,
    )
    prompts, decodes = tiles(query_THD.dtype, arguments.widest, arguments.group)
    if metadata.num_decodes > 0:
        decode(arguments, metadata, decodes)
    if metadata.context_lens.numel() > metadata.num_decodes:
        _prefill(arguments, metadata, prompts)


def decode(a: Arguments, metadata: AttentionMetadata, tile: Tile, num_programs: int | None = None) -> None:
    """The leading rows of one token.

    Args:
        a: The call.
        metadata: Its rows.
        tile: Of the launch.
        num_programs: Programs that share a row's segments under a KV head; 1: they are merged in registers;
            None: by the shapes. The results are the same.
    """
    num_rows, num_kv_heads = metadata.num_decodes, a.keys.shape[2]
    num_heads, value_size = a.out.shape[1:]
    most_keys = metadata.block_tables.shape[1] * a.keys.shape[1]
    num_segments = max(1, ceil_div(most_keys, SEGMENT))
    if num_programs is None:
        num_bytes = 4 * num_rows * num_heads * num_segments * (value_size + 2)
        wanted = ceil_div(_PROGRAMS_PER_PROCESSOR * num_processors(a.query.device), num_rows * num_kv_heads)
        num_programs = 1 if num_bytes > _MOST_PARTIAL_BYTES else min(wanted, num_segments)
    partial, state = a.out, a.out
    if num_programs > 1:
        shape = (num_rows, num_heads, num_segments)
        partial = torch.empty((*shape, value_size), dtype=torch.float32, device=a.out.device)
        state = torch.empty((*shape, 2), dtype=torch.float32, device=a.out.device)
    options = _options(a, tile)
    attention_kernel[(num_rows, num_kv_heads, num_programs)](
        *_given(a, partial, state, metadata),
        0,
        num_rows,
        num_segments,
        *a.scores(),
        BLOCK_Q=1,
        IS_DECODE=True,
        IN_PARTS=num_programs > 1,
        **options,
    )
    if num_programs == 1:
        return
    merge_kernel[(num_rows, num_heads)](
        a.out,
        partial,
        state,
        metadata.context_lens,
        a.per_head()[0],
        a.per_head()[3],
        *a.out.stride()[:2],
        num_segments,
        *a.scores()[2:],
        num_warps=1 if value_size <= 128 else 2,
        enable_fp_fusion=False,
        **{name: options[name] for name in _MERGE_OPTIONS if name in options},
    )


_MERGE_OPTIONS = (
    "GROUP",
    "V",
    "V_PAD",
    "BLOCK_N",
    "SEGMENT",
    "HAS_WINDOW",
    "HAS_CHUNK",
    "HAS_SINKS",
    "HAS_CACHE_SCALES",
    "PDL",
    "launch_pdl",
)


def _prefill(a: Arguments, metadata: AttentionMetadata, tile: Tile) -> None:
    """The rows past the decode rows."""
    first_row = metadata.num_decodes
    num_rows = metadata.context_lens.numel() - first_row
    block_q = tile.block_m // a.group
    attention_kernel[((a.query.shape[0] - first_row) // block_q + num_rows, a.keys.shape[2])](
        *_given(a, a.out, a.out, metadata),
        first_row,
        num_rows,
        1,
        *a.scores(),
        BLOCK_Q=block_q,
        IS_DECODE=False,
        IN_PARTS=False,
        **_options(a, tile),
    )


def _given(
    a: Arguments, partial: torch.Tensor, state: torch.Tensor, metadata: AttentionMetadata
) -> tuple[Any, ...]:
    return (
        a.out,
        partial,
        state,
        a.query,
        a.keys,
        a.values,
        metadata.cu_query_lens,
        metadata.context_lens,
        metadata.block_tables,
        *a.per_head(),
        *a.strides(),
        metadata.block_tables.stride(0),
    )


def _options(a: Arguments, tile: Tile) -> dict[str, Any]:
    return {
        **a.constants(tile),
        "SEGMENT": SEGMENT,
        "enable_fp_fusion": False,
        **launch_options(a.query.device),
    }
