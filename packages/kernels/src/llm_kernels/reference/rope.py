"""Rotary embedding in torch, float32 inside; the meaning of `rotary_embedding`."""

from __future__ import annotations

import torch

from llm_kernels.checks import check_rope


def rotary_embedding(
    query_THD: torch.Tensor,
    key_THD: torch.Tensor,
    positions: torch.Tensor,
    cos_sin_cache: torch.Tensor,
    interleaved: bool,
) -> None:
    """Reference of `ops.rotary_embedding`."""
    check_rope(query_THD, key_THD, positions, cos_sin_cache)
    cos, sin = cos_sin_cache[positions].float().unsqueeze(1).chunk(2, dim=-1)
    for x_THD in (query_THD, key_THD):
        rotated = x_THD[..., : cos_sin_cache.shape[-1]]
        if interleaved:
            first, second = rotated[..., 0::2], rotated[..., 1::2]
        else:
            first, second = rotated.chunk(2, dim=-1)
        # A copy: `first` is overwritten before its last use.
        a, b = first.to(torch.float32, copy=True), second.float()
        first.copy_(a * cos - b * sin)
        second.copy_(b * cos + a * sin)
