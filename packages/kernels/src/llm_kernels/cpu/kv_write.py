"""KV write in C++ on the CPU: the wrapper of csrc/cpu/kv_write."""

from __future__ import annotations

import torch

from llm_kernels.cpu.library import invalid, native

_write_kv = native("write_kv")


def write_kv(
    key_TKD: torch.Tensor,
    value_TKD: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
) -> None:
    """C++ back end of `ops.write_kv`."""
    try:
        _write_kv(key_TKD, value_TKD, key_cache, value_cache, slot_mapping, torch.get_num_threads())
    except ValueError as error:
        raise invalid(error) from None
