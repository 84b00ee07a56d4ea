"""Writes to the paged cache in C++ on the CPU: the wrapper of csrc/cpu/kv_write."""

from __future__ import annotations

import torch

from llm_kernels.cpu.library import invalid, native

_write_kv = native("write_kv")
_write_latent = native("write_latent")


def write_kv(
    key_TKD: torch.Tensor,
    value_TKV: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
) -> None:
    """C++ back end of `ops.write_kv`."""
    try:
        _write_kv(key_TKD, value_TKV, key_cache, value_cache, slot_mapping, torch.get_num_threads())
    except ValueError as error:
        raise invalid(error) from None


def write_latent(latent_TL: torch.Tensor, latent_cache: torch.Tensor, slot_mapping: torch.Tensor) -> None:
    """C++ back end of `ops.write_latent`."""
    try:
        _write_latent(latent_TL, latent_cache, slot_mapping, torch.get_num_threads())
    except ValueError as error:
        raise invalid(error) from None
