"""Writing to the slots of a paged cache in torch; the meaning of `write_kv` and `write_latent`."""

from __future__ import annotations

import torch

from llm_kernels.checks import check_write_kv, check_write_latent
from llm_kernels.errors import InvalidArgument


def write_kv(
    key_TKD: torch.Tensor,
    value_TKV: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
) -> None:
    """Reference of `ops.write_kv`."""
    check_write_kv(key_TKD, value_TKV, key_cache, value_cache, slot_mapping)
    _check_slots(slot_mapping, key_cache)
    _write(key_TKD, key_cache, slot_mapping)
    _write(value_TKV, value_cache, slot_mapping)


def write_latent(latent_TL: torch.Tensor, latent_cache: torch.Tensor, slot_mapping: torch.Tensor) -> None:
    """Reference of `ops.write_latent`."""
    check_write_latent(latent_TL, latent_cache, slot_mapping)
    _check_slots(slot_mapping, latent_cache)
    _write(latent_TL, latent_cache, slot_mapping)


def _check_slots(slot_mapping: torch.Tensor, cache: torch.Tensor) -> None:
    if slot_mapping.device.type != "cpu" or slot_mapping.numel() == 0:
        return
    num_slots = cache.shape[0] * cache.shape[1]
    low, high = int(slot_mapping.min()), int(slot_mapping.max())
    if low < -1 or high >= num_slots:
        raise InvalidArgument("slot_mapping", f"slots must lie in [-1, {num_slots}), found {low}..{high}")


def _write(tokens: torch.Tensor, cache: torch.Tensor, slot_mapping: torch.Tensor) -> None:
    kept = slot_mapping >= 0
    slots = slot_mapping[kept]
    cache[slots // cache.shape[1], slots % cache.shape[1]] = tokens[kept].to(cache.dtype)
