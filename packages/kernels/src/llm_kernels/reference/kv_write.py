"""Writing to the slots of a paged cache in torch; the meaning of `write_kv` and `write_latent`."""

from __future__ import annotations

import torch

from llm_kernels.checks import check_cache_scales, check_write_kv, check_write_latent
from llm_kernels.errors import InvalidArgument


def write_kv(
    key_TKD: torch.Tensor,
    value_TKV: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
    key_scale: torch.Tensor | None = None,
    value_scale: torch.Tensor | None = None,
) -> None:
    """Reference of `ops.write_kv`."""
    check_write_kv(key_TKD, value_TKV, key_cache, value_cache, slot_mapping)
    check_cache_scales(key_cache, key_scale, value_scale)
    _check_slots(slot_mapping, key_cache)
    _write(_stored(key_TKD, key_cache.dtype, key_scale), key_cache, slot_mapping)
    _write(_stored(value_TKV, value_cache.dtype, value_scale), value_cache, slot_mapping)


def write_latent(latent_TL: torch.Tensor, latent_cache: torch.Tensor, slot_mapping: torch.Tensor) -> None:
    """Reference of `ops.write_latent`."""
    check_write_latent(latent_TL, latent_cache, slot_mapping)
    _check_slots(slot_mapping, latent_cache)
    _write(latent_TL, latent_cache, slot_mapping)


def _stored(x_TKD: torch.Tensor, dtype: torch.dtype, scale_K: torch.Tensor | None) -> torch.Tensor:
    """Tokens as a cache of that dtype holds them."""
    if dtype != torch.float8_e4m3fn:
        return x_TKD
    x_TKD = x_TKD.float() if scale_K is None else x_TKD.float() / scale_K[:, None]
    most = torch.finfo(dtype).max
    return x_TKD.clamp(-most, most).to(dtype)


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
