"""A matrix product of its own for each head, in torch; the meaning of `head_linear`."""

from __future__ import annotations

import torch


def head_linear(x_THI: torch.Tensor, weight_HOI: torch.Tensor) -> torch.Tensor:
    """Reference of `ops.head_linear`."""
    return torch.einsum("thi,hoi->tho", x_THI, weight_HOI)
