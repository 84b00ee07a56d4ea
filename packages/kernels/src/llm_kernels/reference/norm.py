"""RMS norms in torch, float32 inside; the meaning of the norm ops."""

from __future__ import annotations

import torch

from llm_kernels.checks import check_norm


def rms_norm(out: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, eps: float) -> None:
    """Reference of `ops.rms_norm`."""
    check_norm("x", x, "out", out, weight)
    x_f32 = x.float()
    scale = torch.rsqrt(x_f32.square().mean(dim=-1, keepdim=True) + eps)
    out.copy_(x_f32 * scale * weight.float())


def fused_add_rms_norm(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float) -> None:
    """Reference of `ops.fused_add_rms_norm`."""
    check_norm("x", x, "residual", residual, weight)
    residual.add_(x)
    rms_norm(x, residual, weight, eps)
