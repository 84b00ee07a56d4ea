"""Batch-invariant paged attention in C++ on the CPU: the other wrapper of csrc/cpu/attention."""

from __future__ import annotations

import torch

from llm_kernels.cpu.attention import attend
from llm_kernels.cpu.library import native
from llm_kernels.metadata import AttentionMetadata

_invariant_paged_attention = native("invariant_paged_attention")


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
    """Batch-invariant back end of `ops.paged_attention`."""
    attend(
        _invariant_paged_attention,
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
