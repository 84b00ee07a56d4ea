"""Quantization to e4m3 in torch, float32 inside; the meaning of the ops that quantize."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from llm_kernels.checks import check_gated, check_norm
from llm_kernels.fp8_format import E4M3, E4M3_MAX, GROUP, LEAST, check_input_scale, check_quantized
from llm_kernels.reference.activation import gated_activation
from llm_kernels.reference.norm import rms_norm


def quantize_fp8(
    values_TI: torch.Tensor, scales_TG: torch.Tensor, x_TI: torch.Tensor, scale: torch.Tensor | None
) -> None:
    """Reference of `ops.quantize_fp8`."""
    check_quantized(values_TI, scales_TG)
    check_input_scale(scale, x_TI.device)
    groups, size = scales_TG.shape[1], x_TI.shape[1]
    width = size if groups == 1 else GROUP
    x_TGI = F.pad(x_TI.float(), (0, groups * width - size)).view(-1, groups, width)
    if scale is None:
        scales_TG.copy_(x_TGI.abs().amax(dim=-1).clamp_min(LEAST) / E4M3_MAX)
    else:
        scales_TG.copy_(scale.expand_as(scales_TG))
    quotient_TGI = (x_TGI / scales_TG[:, :, None]).clamp(-E4M3_MAX, E4M3_MAX)
    values_TI.copy_(quotient_TGI.flatten(1)[:, :size].to(E4M3))


def rms_norm_fp8(
    values_TI: torch.Tensor,
    scales_TG: torch.Tensor,
    x_TI: torch.Tensor,
    residual_TI: torch.Tensor | None,
    weight_I: torch.Tensor | None,
    eps: float,
) -> None:
    """Reference of `ops.rms_norm_fp8`."""
    check_norm("x_TI", x_TI, "residual_TI", x_TI if residual_TI is None else residual_TI, weight_I)
    check_quantized(values_TI, scales_TG)
    if residual_TI is not None:
        residual_TI.add_(x_TI)
        x_TI = residual_TI
    normal_TI = torch.empty_like(x_TI, dtype=torch.float32)
    rms_norm(normal_TI, x_TI.float(), weight_I, eps)
    quantize_fp8(values_TI, scales_TG, normal_TI, None)


def gated_activation_fp8(
    values_TI: torch.Tensor, scales_TG: torch.Tensor, gate_up_TF: torch.Tensor, kind: str
) -> None:
    """Reference of `ops.gated_activation_fp8`."""
    check_quantized(values_TI, scales_TG)
    inner_TI = torch.empty(values_TI.shape, dtype=torch.float32, device=gate_up_TF.device)
    check_gated(inner_TI, gate_up_TF.float())
    gated_activation(inner_TI, gate_up_TF.float(), kind, None, None)
    quantize_fp8(values_TI, scales_TG, inner_TI, None)


def dequantize_weight(weight_OI: torch.Tensor, weight_scale: torch.Tensor) -> torch.Tensor:
    """The float32 weight [O, I] that e4m3 values and their scales stand for."""
    if weight_scale.ndim == 2:
        weight_scale = weight_scale.repeat_interleave(GROUP, 0)[: weight_OI.shape[0]]
        weight_scale = weight_scale.repeat_interleave(GROUP, 1)[:, : weight_OI.shape[1]]
    elif weight_scale.ndim == 1:
        weight_scale = weight_scale[:, None]
    return weight_OI.float() * weight_scale


def dequantize_activation(values_TI: torch.Tensor, scales_TG: torch.Tensor) -> torch.Tensor:
    """The float32 activations [T, I] that e4m3 values and their scales stand for."""
    if scales_TG.shape[1] > 1:
        scales_TG = scales_TG.repeat_interleave(GROUP, 1)[:, : values_TI.shape[1]]
    return values_TI.float() * scales_TG
