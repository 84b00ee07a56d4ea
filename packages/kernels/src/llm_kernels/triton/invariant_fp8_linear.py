"""Batch-invariant linear layers with e4m3 weights in Triton: always quantized, one chain of sums each."""

from __future__ import annotations

import torch

from llm_kernels.checks import check_inner_contiguous
from llm_kernels.fp8_format import E4M3, check_contiguous
from llm_kernels.reference.fp8_linear import check_fp8_linear
from llm_kernels.triton.dependent_launch import launch_options
from llm_kernels.triton.fp8_linear import empty_scales
from llm_kernels.triton.fp8_linear_kernels import scaled_product_kernel
from llm_kernels.triton.launch_sizes import ceil_div
from llm_kernels.triton.quantize_fp8 import launch_quantization

_MOST_SMALL = 64


def fp8_linear(
    x_TI: torch.Tensor,
    weight_OI: torch.Tensor,
    weight_scale: torch.Tensor,
    bias_O: torch.Tensor | None,
    input_scale: torch.Tensor | None,
) -> torch.Tensor:
    """Batch-invariant back end of `ops.fp8_linear`."""
    check_fp8_linear(x_TI, weight_OI, weight_scale, bias_O, input_scale)
    check_contiguous("weight_OI", weight_OI)
    check_inner_contiguous(x_TI=x_TI)
    (tokens, inputs), outputs = x_TI.shape, weight_OI.shape[0]
    values_TI = torch.empty(x_TI.shape, dtype=E4M3, device=x_TI.device)
    scales_TG = empty_scales(tokens, inputs, weight_scale)
    launch_quantization(values_TI, scales_TG, x_TI, scale=input_scale)
    out_TO = torch.empty((tokens, outputs), dtype=x_TI.dtype, device=x_TI.device)
    if out_TO.numel() == 0:
        return out_TO
    if weight_scale.ndim == 0:
        weight_scale = weight_scale.expand(outputs).contiguous()
    block_m, block_n = (64, 64) if tokens <= _MOST_SMALL else (128, 128)
    scaled_product_kernel[(ceil_div(tokens, block_m) * ceil_div(outputs, block_n),)](
        out_TO,
        values_TI,
        weight_OI,
        scales_TG,
        weight_scale,
        weight_scale if bias_O is None else bias_O,
        tokens,
        outputs,
        inputs,
        *scales_TG.stride(),
        *(weight_scale.stride() if weight_scale.ndim == 2 else (weight_scale.stride(0), 0)),
        TOKEN_GROUPS=scales_TG.shape[1] > 1,
        BLOCK_SCALES=weight_scale.ndim == 2,
        HAS_BIAS=bias_O is not None,
        EVEN_K=inputs % 128 == 0,
        BLOCK_M=block_m,
        BLOCK_N=block_n,
        BLOCK_K=128,
        GROUP_M=8,
        num_warps=8 if block_m == 128 else 4,
        num_stages=4,
        **launch_options(values_TI.device),
    )
    return out_TO
