"""Attention over a cache of latents in torch; the meaning of `latent_attention`."""

from __future__ import annotations

import torch

from llm_kernels.checks import check_latent_attention
from llm_kernels.metadata import AttentionMetadata
from llm_kernels.reference.attention import attend_rows
from llm_kernels.reference.attention_scores import Scoring


def latent_attention(
    out_THR: torch.Tensor,
    query_THL: torch.Tensor,
    latent_cache: torch.Tensor,
    metadata: AttentionMetadata,
    scale: float,
    value_size: int,
) -> None:
    """Reference of `ops.latent_attention`: one KV head whose value is the head of its key."""
    check_latent_attention(out_THR, query_THL, latent_cache, metadata, value_size)
    key_cache = latent_cache.unsqueeze(2)
    value_cache = key_cache[..., :value_size]
    attend_rows(out_THR, query_THL, key_cache, value_cache, metadata, Scoring(scale=scale))
