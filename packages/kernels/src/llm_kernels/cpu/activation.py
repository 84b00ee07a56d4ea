"""Gated activations in C++ on the CPU: the wrapper of csrc/cpu/activation."""

from __future__ import annotations

import torch

from llm_kernels.cpu.library import invalid, native

_gated_activation = native("gated_activation")


def gated_activation(
    out: torch.Tensor, gate_up: torch.Tensor, kind: str, limit: float | None, alpha: float | None
) -> None:
    """C++ back end of `ops.gated_activation`: silu, gelu and gelu_tanh."""
    assert limit is None
    assert alpha is None
    try:
        _gated_activation(out, gate_up, kind, torch.get_num_threads())
    except ValueError as error:
        raise invalid(error) from None
