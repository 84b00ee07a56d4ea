"""Linear attention with a constant decay a head in torch; the meaning of `linear_attention`."""

from __future__ import annotations

import torch

from llm_kernels.metadata import AttentionMetadata
from llm_kernels.reference.state_rows import Tokens, run_state_rows
from llm_kernels.reference.state_rows_chunked import decayed_scan
from llm_kernels.state_checks import check_linear_attention

_MAX_SPAN = 256


def linear_attention(
    out_THV: torch.Tensor,
    query_TGK: torch.Tensor,
    key_TGK: torch.Tensor,
    value_THV: torch.Tensor,
    slope_H: torch.Tensor,
    state_cache: torch.Tensor,
    metadata: AttentionMetadata,
    block_size: int,
    scale: float,
) -> None:
    """Reference of `ops.linear_attention`."""
    check_linear_attention(out_THV, query_TGK, key_TGK, value_THV, slope_H, state_cache, metadata, block_size)
    slope_H = slope_H.float()
    ratio = value_THV.shape[1] // key_TGK.shape[1]

    def step(
        tokens: Tokens, state_RHKV: torch.Tensor, _fresh: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        query, key = (x[tokens].float().repeat_interleave(ratio, dim=1) for x in (query_TGK, key_TGK))
        value = value_THV[tokens].float()
        state_RHKV *= (-slope_H).exp()[:, None, None]
        state_NKV = state_RHKV.flatten(0, 1)
        state_NKV.addcmul_(key.flatten(0, 1).unsqueeze(2), value.flatten(0, 1).unsqueeze(1))
        out = (query.flatten(0, 1).unsqueeze(1) * scale) @ state_NKV
        return out.view_as(value), state_RHKV

    def scan(tokens: slice, state_HKV: torch.Tensor, _fresh: bool) -> tuple[torch.Tensor, torch.Tensor]:
        value = value_THV[tokens].float()
        log_decay = (-slope_H).expand(value.shape[0], -1)
        query, key = query_TGK[tokens].float() * scale, key_TGK[tokens].float()
        return decayed_scan(query, key, value, log_decay, state_HKV)

    run_state_rows(out_THV, state_cache, metadata, block_size, step, scan, _MAX_SPAN)
