"""Norms of heads, rotation and the write to the cache, by the C++ kernel of each in turn."""

from __future__ import annotations

import torch

from llm_kernels.attention_input_checks import check_rotate_write_kv
from llm_kernels.cpu.kv_write import write_kv
from llm_kernels.cpu.norm import rms_norm
from llm_kernels.cpu.rope import rotary_embedding


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
) -> None:
    """C++ back end of `ops.rotate_write_kv`; rounds between its steps."""
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
    if eps is not None:
        rms_norm(query_THD, query_THD, query_weight, eps)
        rms_norm(key_TKD, key_TKD, key_weight, eps)
    if cos_sin_cache is not None:
        rotary_embedding(query_THD, key_TKD, positions, cos_sin_cache, interleaved)
    write_kv(key_TKD, value_TKV, key_cache, value_cache, slot_mapping)
