"""Launches batch-invariant attention over latents in Triton: the prefill kernel for all rows.

Its tiles of keys begin at the sequence's first key. Nothing is split, so few rows of long contexts are slow.
"""

from __future__ import annotations

import torch

from llm_kernels.checks import check_inner_contiguous, check_latent_attention
from llm_kernels.metadata import AttentionMetadata
from llm_kernels.triton.latent_attention import prefill


def latent_attention(
    out_THR: torch.Tensor,
    query_THL: torch.Tensor,
    latent_cache: torch.Tensor,
    metadata: AttentionMetadata,
    scale: float,
    value_size: int,
) -> None:
    """Batch-invariant back end of `ops.latent_attention`."""
    check_latent_attention(out_THR, query_THL, latent_cache, metadata, value_size)
    check_inner_contiguous(
        out_THR=out_THR,
        query_THL=query_THL,
        latent_cache=latent_cache,
        block_tables=metadata.block_tables,
        context_lens=metadata.context_lens,
        cu_query_lens=metadata.cu_query_lens,
    )
    if metadata.context_lens.numel() > 0:
        # Contraction of products and sums might differ between the loops with a mask and without.
        prefill(out_THR, query_THL, latent_cache, metadata, scale, first_row=0, enable_fp_fusion=False)
