"""Norms of heads, rotation and the write to the cache in torch; the meaning of `rotate_write_kv`."""

from __future__ import annotations

import torch

from llm_kernels.attention_input_checks import check_rotate_write_kv
from llm_kernels.reference.kv_write import write_kv
from llm_kernels.reference.norm import rms_norm
from llm_kernels.reference.rope import rotary_embedding


def rotate_write_kv(
    query_THD: torch.Tensor,
    key_TKD: torch.Tensor,
    value_TKV: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    positions: torch.Tensor,
    slot_mapping: torch.Tensor,
    cos_sin_cache: torch.Tensor | None,
    query_weight: torch.Tensor | None,
    key_weight: torch.Tensor | None,
    eps: float | None,
    interleaved: bool,
    key_scale: torch.Tensor | None = None,
    value_scale: torch.Tensor | None = None,
) -> None:
    """Reference of `ops.rotate_write_kv`; float32 between its steps, rounded at the end."""
    check_rotate_write_kv(
        query_THD,
        key_TKD,
        value_TKV,
        key_cache,
        value_cache,
        positions,
        slot_mapping,
        cos_sin_cache,
        query_weight,
        key_weight,
        eps,
    )
    query, key = query_THD.float(), key_TKD.float()
    if eps is not None:
        rms_norm(query, query, query_weight, eps)
        rms_norm(key, key, key_weight, eps)
    if cos_sin_cache is not None:
        rotary_embedding(query, key, positions, cos_sin_cache, interleaved)
    key = key.to(key_TKD.dtype)
    write_kv(key, value_TKV, key_cache, value_cache, slot_mapping, key_scale, value_scale)
    query_THD.copy_(query)
