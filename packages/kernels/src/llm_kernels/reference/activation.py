"""Gated activations in torch, float32 inside; the meaning of `gated_activation`."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from llm_kernels.checks import check_gated
from llm_kernels.errors import InvalidArgument


def gated_activation(out: torch.Tensor, gate_up: torch.Tensor, kind: str) -> None:
    """Reference of `ops.gated_activation`."""
    check_gated(out, gate_up)
    gate, up = gate_up.float().chunk(2, dim=-1)
    if kind == "silu":
        activated = F.silu(gate)
    elif kind == "gelu":
        activated = F.gelu(gate)
    elif kind == "gelu_tanh":
        activated = F.gelu(gate, approximate="tanh")
    else:
        raise InvalidArgument("kind", f"expected silu, gelu or gelu_tanh, got {kind!r}")
    out.copy_(activated * up)
