"""Writing keys and values into the paged cache in torch; the meaning of `write_kv`."""

from __future__ import annotations

import torch

from llm_kernels.checks import check_write_kv
from llm_kernels.errors import InvalidArgument


def write_kv(
    key_TKD: torch.Tensor,
    value_TKD: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
) -> None:
    """Reference of `ops.write_kv`."""
    check_write_kv(key_TKD, value_TKD, key_cache, value_cache, slot_mapping)
    num_blocks, block_size = key_cache.shape[:2]
    kept = slot_mapping >= 0
    slots = slot_mapping[kept]
    if slot_mapping.device.type == "cpu" and slot_mapping.numel():
        low, high = int(slot_mapping.min()), int(slot_mapping.max())
        if low < -1 or high >= num_blocks * block_size:
            raise InvalidArgument(
                "slot_mapping", f"slots must lie in [-1, {num_blocks * block_size}), found {low}..{high}"
            )
    where = (slots // block_size, slots % block_size)
    key_cache[where] = key_TKD[kept].to(key_cache.dtype)
    value_cache[where] = value_TKD[kept].to(value_cache.dtype)
