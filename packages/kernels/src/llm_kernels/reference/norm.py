"""RMS and layer norms in torch, float32 inside; the meaning of the norm ops."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from llm_kernels.checks import check_layer_norm, check_norm


def rms_norm(out: torch.Tensor, x: torch.Tensor, weight: torch.Tensor | None, eps: float) -> None:
    """Reference of `ops.rms_norm`."""
    check_norm("x", x, "out", out, weight)
    x_f32 = x.float()
    normal = x_f32 * torch.rsqrt(x_f32.square().mean(dim=-1, keepdim=True) + eps)
    out.copy_(normal if weight is None else normal * weight.float())


def fused_add_rms_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor | None, eps: float
) -> None:
    """Reference of `ops.fused_add_rms_norm`."""
    check_norm("x", x, "residual", residual, weight)
    residual.add_(x)
    rms_norm(x, residual, weight, eps)


def layer_norm(
    out: torch.Tensor, x: torch.Tensor, weight: torch.Tensor | None, bias: torch.Tensor | None, eps: float
) -> None:
    """Reference of `ops.layer_norm`."""
    check_layer_norm("x", x, "out", out, weight, bias)
    size = x.shape[-1:]
    if (weight is None or weight.ndim == 1) and (bias is None or bias.ndim == 1):
        out.copy_(F.layer_norm(x.float(), size, _float(weight), _float(bias), eps))
        return
    normal = F.layer_norm(x.float(), size, eps=eps)
    if weight is not None:
        normal = normal * weight.float()
    out.copy_(normal if bias is None else normal + bias.float())


def fused_add_layer_norm(
    x: torch.Tensor,
    residual: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    eps: float,
) -> None:
    """Reference of `ops.fused_add_layer_norm`."""
    check_layer_norm("x", x, "residual", residual, weight, bias)
    residual.add_(x)
    layer_norm(x, residual, weight, bias, eps)


def _float(x: torch.Tensor | None) -> torch.Tensor | None:
    return None if x is None else x.float()
