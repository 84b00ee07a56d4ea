"""Rotary embedding in C++ on the CPU: the wrapper of csrc/cpu/rope."""

from __future__ import annotations

import torch

from llm_kernels.cpu.library import invalid, native

_rotary_embedding = native("rotary_embedding")


def rotary_embedding(
    query_THD: torch.Tensor,
    key_TKD: torch.Tensor,
    positions: torch.Tensor,
    cos_sin_cache: torch.Tensor,
    interleaved: bool,
) -> None:
    """C++ back end of `ops.rotary_embedding`."""
    try:
        _rotary_embedding(query_THD, key_TKD, positions, cos_sin_cache, interleaved, torch.get_num_threads())
    except ValueError as error:
        raise invalid(error) from None
