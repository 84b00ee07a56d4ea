"""The gated projection between quantized activations in torch: the meaning of `fp8_gated_product`."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from llm_kernels.fp8_format import check_quantized
from llm_kernels.reference.activation import gated
from llm_kernels.reference.fp8_linear import check_fp8_product
from llm_kernels.reference.quantize_fp8 import dequantize_activation, dequantize_weight, quantize_fp8


def fp8_gated_product(
    inner_values_TI: torch.Tensor,
    inner_scales_TG: torch.Tensor,
    values_TE: torch.Tensor,
    scales_TG: torch.Tensor,
    weight_OE: torch.Tensor,
    weight_scale: torch.Tensor,
    kind: str,
    bias_O: torch.Tensor | None,
    _dtype: torch.dtype,
) -> None:
    """Reference of `ops.fp8_gated_product`: rounds to nothing but e4m3."""
    check_fp8_gated_product(
        inner_values_TI, inner_scales_TG, values_TE, scales_TG, weight_OE, weight_scale, bias_O
    )
    weight = dequantize_weight(weight_OE, weight_scale)
    bias = None if bias_O is None else bias_O.float()
    gate_up = F.linear(dequantize_activation(values_TE, scales_TG), weight, bias)
    quantize_fp8(inner_values_TI, inner_scales_TG, gated(gate_up, kind, None, None), None)


def check_fp8_gated_product(
    inner_values_TI: torch.Tensor,
    inner_scales_TG: torch.Tensor,
    values_TE: torch.Tensor,
    scales_TG: torch.Tensor,
    weight_OE: torch.Tensor,
    weight_scale: torch.Tensor,
    bias_O: torch.Tensor | None,
) -> None:
    """Checks the tensors of `ops.fp8_gated_product`."""
    check_fp8_product(values_TE, scales_TG, weight_OE, weight_scale, bias_O)
    check_quantized(inner_values_TI, inner_scales_TG)
