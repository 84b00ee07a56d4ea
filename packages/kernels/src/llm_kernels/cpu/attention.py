"""Paged attention in C++ on the CPU: the wrapper of csrc/cpu/attention."""

from __future__ import annotations

import torch

from llm_kernels.cpu.library import invalid, native
from llm_kernels.metadata import AttentionMetadata

_paged_attention = native("paged_attention")


def paged_attention(
    out_THD: torch.Tensor,
    query_THD: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    metadata: AttentionMetadata,
    scale: float,
    sliding_window: int | None,
    soft_cap: float | None,
    *_features: object,
) -> None:
    """C++ back end of `ops.paged_attention`; the registry keeps calls with features away."""
    try:
        _paged_attention(
            out_THD,
            query_THD,
            key_cache,
            value_cache,
            metadata.cu_query_lens,
            metadata.context_lens,
            metadata.block_tables,
            scale,
            -1 if sliding_window is None else sliding_window,
            0.0 if soft_cap is None else soft_cap,
            torch.get_num_threads(),
        )
    except ValueError as error:
        raise invalid(error) from None
