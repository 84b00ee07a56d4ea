"""Products with e4m3 weights, in CUDA C++ for Hopper: of few bfloat16 tokens or of quantized ones.

Which kernel is by measurement (docs/performance.md). Few tokens are quantized by the product itself, more
are quantized first. What no kernel here does best goes the way of the Triton back end.
"""

from __future__ import annotations

import torch

from llm_kernels.cuda.fp8_panels import panels
from llm_kernels.cuda.fp8_plans import MOST_FEW, few_plan, panel_plan
from llm_kernels.cuda.linear import MOST_TOKENS, has_aligned_rows, streamed, takes
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
    check_fp8_linear(x_TI, weight_OI, weight_scale, bias_O, input_scale)
    is_few = x_TI.shape[0] <= most_widened_tokens(weight_scale)
    if not is_few or not takes(x_TI, weight_OI, bias_O, weight_scale):
        values_TI = torch.empty(x_TI.shape, dtype=weight_OI.dtype, device=x_TI.device)
        scales_TG = quantizing.empty_scales(x_TI.shape[0], x_TI.shape[1], weight_scale)
        quantize_fp8(values_TI, scales_TG, x_TI, input_scale)
        return fp8_product(values_TI, scales_TG, weight_OI, weight_scale, bias_O, x_TI.dtype)
    out_TO = torch.empty((x_TI.shape[0], weight_OI.shape[0]), dtype=x_TI.dtype, device=x_TI.device)
    outputs, inputs = weight_OI.shape
    plan = few_plan(outputs, inputs, gated=False) if weight_scale.ndim < 2 else None
    if plan is None:
        streamed(out_TO, x_TI, weight_OI, bias_O, weight_scale, 0)
    else:
        panels(out_TO, x_TI, None, weight_OI, weight_scale, bias_O, 0, plan)
    return out_TO


def most_widened_tokens(weight_scale: torch.Tensor) -> int:
    """Up to how many tokens products take bfloat16, by measurement: blocks of scales have no others."""
    return MOST_TOKENS if weight_scale.ndim == 2 else MOST_FEW


def fp8_product(
    values_TI: torch.Tensor,
    scales_TG: torch.Tensor,
    weight_OI: torch.Tensor,
    weight_scale: torch.Tensor,
    bias_O: torch.Tensor | None,
    dtype: torch.dtype,
) -> torch.Tensor:
    """CUDA back end of `ops.fp8_product`: up to some hundred tokens with a scale each."""
    check_fp8_product(values_TI, scales_TG, weight_OI, weight_scale, bias_O)
    is_plain = _is_plain(values_TI, scales_TG, weight_OI, weight_scale, bias_O, dtype)
    (tokens, inputs), outputs = values_TI.shape, weight_OI.shape[0]
    plan = panel_plan(tokens, outputs, inputs) if is_plain else None
    if plan is None and not (is_plain and tokens <= MOST_TOKENS):
        return quantizing.fp8_product(values_TI, scales_TG, weight_OI, weight_scale, bias_O, dtype)
    out_TO = torch.empty((tokens, outputs), dtype=dtype, device=values_TI.device)
    if plan is None:
        streamed(out_TO, values_TI, weight_OI, bias_O, weight_scale, 0, token_scale=scales_TG)
    else:
        panels(out_TO, values_TI, scales_TG, weight_OI, weight_scale, bias_O, 0, plan)
    return out_TO


def _is_plain(
    values_TI: torch.Tensor,
    scales_TG: torch.Tensor,
    weight_OI: torch.Tensor,
    weight_scale: torch.Tensor,
    bias_O: torch.Tensor | None,
    dtype: torch.dtype,
) -> bool:
    """Whether the kernels do products of this form: a scale a token and one an output, or in all."""
    if scales_TG.shape[1] != 1 or weight_scale.ndim == 2 or dtype != torch.bfloat16:
        return False
    if bias_O is not None and (bias_O.dtype != dtype or not bias_O.is_contiguous()):
        return False
    outputs, inputs = weight_OI.shape
    if values_TI.shape[0] == 0 or outputs == 0 or outputs % 8 != 0 or inputs == 0 or inputs % 16 != 0:
        return False
    return has_aligned_rows(values_TI) and has_aligned_rows(weight_OI)
