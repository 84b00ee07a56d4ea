"""Paged attention in C++ on the CPU: the wrapper of csrc/cpu/attention."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from llm_kernels.checks import check_scoring
from llm_kernels.cpu.library import invalid, native
from llm_kernels.metadata import AttentionMetadata

_paged_attention = native("paged_attention")


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
) -> None:
    """C++ back end of `ops.paged_attention`."""
    attend(
        _paged_attention,
        out_THV,
        query_THD,
        key_cache,
        value_cache,
        metadata,
        scale,
        sliding_window,
        soft_cap,
        chunk,
        sinks,
        alibi_slopes,
        causal,
    )


def attend(
    function: Callable[..., Any],
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
) -> None:
    """Checks and calls one of the library's two functions."""
    check_scoring(query_THD, sliding_window, soft_cap, chunk, sinks, alibi_slopes, causal)
    try:
        function(
            out_THV,
            query_THD,
            key_cache,
            value_cache,
            metadata.cu_query_lens,
            metadata.context_lens,
            metadata.block_tables,
            scale,
            -1 if sliding_window is None else sliding_window,
            0.0 if soft_cap is None else soft_cap,
            -1 if chunk is None else chunk,
            None if sinks is None else sinks.float(),
            alibi_slopes,
            causal,
            torch.get_num_threads(),
        )
    except ValueError as error:
        raise invalid(error) from None
