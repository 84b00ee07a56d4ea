"""Checks of the arguments of `rotate_write_kv`; knows nothing about its back ends."""

from __future__ import annotations

import torch

from llm_kernels.checks import check_dtype, check_rope, check_shape, check_write_kv
from llm_kernels.errors import InvalidArgument


def check_rotate_write_kv(
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
) -> None:
    """Checks all but the values of positions and slots."""
    check_write_kv(key_TKD, value_TKV, key_cache, value_cache, slot_mapping)
    num_tokens, _, head_size = key_TKD.shape
    if query_THD.ndim != 3:
        raise InvalidArgument("query_THD", f"expected [T, H, D], got {list(query_THD.shape)}")
    check_shape("query_THD", query_THD, (num_tokens, query_THD.shape[1], head_size), key_TKD.device)
    check_dtype("query_THD", query_THD, key_TKD.dtype)
    if cos_sin_cache is not None:
        check_rope(query_THD, key_TKD, positions, cos_sin_cache)
    for field, weight in (("query_weight", query_weight), ("key_weight", key_weight)):
        if weight is not None:
            if eps is None:
                raise InvalidArgument("eps", f"expected with {field}")
            check_shape(field, weight, (head_size,), key_TKD.device)
