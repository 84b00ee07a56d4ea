"""Products of few tokens with e4m3 weights, in CUDA C++ for Hopper: of bfloat16 or of quantized activations.

Up to how many tokens is by measurement (docs/performance.md); above that activations are quantized and e4m3
multiplies e4m3, as in the Triton back end.
"""

from __future__ import annotations

import torch

from llm_kernels.cuda.linear import MOST_TOKENS, streamed, takes
from llm_kernels.reference.fp8_linear import check_fp8_linear, check_fp8_product
from llm_kernels.triton import fp8_linear as quantizing
from llm_kernels.triton.quantize_fp8 import quantize_fp8


def fp8_linear(
    x_TI: torch.Tensor,
    weight_OI: torch.Tensor,
    weight_scale: torch.Tensor,
    bias_O: torch.Tensor | None,
    input_scale: torch.Tensor | None,
) -> torch.Tensor:
    """CUDA back end of `ops.fp8_linear`: bfloat16 activations; few tokens do not need `input_scale`."""
    if not takes(x_TI, weight_OI, bias_O, weight_scale):
        return quantizing.fp8_linear(x_TI, weight_OI, weight_scale, bias_O, input_scale)
    if x_TI.shape[0] > most_widened_tokens(weight_scale):
        values_TI = torch.empty(x_TI.shape, dtype=weight_OI.dtype, device=x_TI.device)
        scales_TG = quantizing.empty_scales(x_TI.shape[0], x_TI.shape[1], weight_scale)
        quantize_fp8(values_TI, scales_TG, x_TI, input_scale)
        return fp8_product(values_TI, scales_TG, weight_OI, weight_scale, bias_O, x_TI.dtype)
    check_fp8_linear(x_TI, weight_OI, weight_scale, bias_O, input_scale)
    out_TO = torch.empty((x_TI.shape[0], weight_OI.shape[0]), dtype=x_TI.dtype, device=x_TI.device)
    streamed(out_TO, x_TI, weight_OI, bias_O, weight_scale, 0)
    return out_TO


def most_widened_tokens(weight_scale: torch.Tensor) -> int:
    """Up to how many tokens stay bfloat16, by measurement: e4m3 and blocks have no streaming kernels."""
    return MOST_TOKENS if weight_scale.ndim == 2 else 2


def fp8_product(
    values_TI: torch.Tensor,
    scales_TG: torch.Tensor,
    weight_OI: torch.Tensor,
    weight_scale: torch.Tensor,
    bias_O: torch.Tensor | None,
    dtype: torch.dtype,
) -> torch.Tensor:
    """CUDA back end of `ops.fp8_product`: few tokens with a scale each."""
    is_plain = scales_TG.shape[1] == 1 and weight_scale.ndim < 2 and dtype == torch.bfloat16
    other_bias = bias_O is not None and bias_O.dtype != dtype
    if not is_plain or other_bias or not takes(values_TI, weight_OI, None, weight_scale):
        return quantizing.fp8_product(values_TI, scales_TG, weight_OI, weight_scale, bias_O, dtype)
    check_fp8_product(values_TI, scales_TG, weight_OI, weight_scale, bias_O)
    out_TO = torch.empty((values_TI.shape[0], weight_OI.shape[0]), dtype=dtype, device=values_TI.device)
    streamed(out_TO, values_TI, weight_OI, bias_O, weight_scale, 0, token_scale=scales_TG)
    return out_TO
