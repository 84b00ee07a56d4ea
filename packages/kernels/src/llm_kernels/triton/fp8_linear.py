"""Linear layers with e4m3 weights on the GPU: activations are quantized, and e4m3 multiplies e4m3.

Where torch's product takes the problem it mostly gets it (cuBLASLt); other number formats, odd sizes, scales
that it does not have, and some hundred tokens of narrow layers go to a Triton kernel.
"""

from __future__ import annotations

from functools import cache

import torch

from llm_kernels.checks import check_inner_contiguous
from llm_kernels.fp8_format import E4M3, GROUP, check_contiguous, num_groups
from llm_kernels.reference.fp8_linear import check_fp8_linear, check_fp8_product
from llm_kernels.triton.dependent_launch import launch_options
from llm_kernels.triton.fp8_linear_kernels import scaled_product_kernel
from llm_kernels.triton.launch_sizes import ceil_div, power_of_2
from llm_kernels.triton.quantize_fp8 import launch_quantization

# torch's product wants both sizes of the weight to be multiples of the first, and with scales a block of the
# second: it reads rows of the weight's scales, which must then be multiples of 16 bytes.
_TORCH_MULTIPLE = 16
_TORCH_BLOCK_MULTIPLE = 4 * GROUP
# Tokens that torch's product with scales a block comes in.
_TORCH_TOKENS = 4
# Tokens and outputs of a tile where tiles are few, how many tiles are neither too few nor too many for the
# 132 multiprocessors of an H200, and up to how many tokens that was seen (docs/performance.md).
_SMALL_TILE = (64, 128)
_ONE_WAVE = (90, 132)
_MOST_SMALL = 256


def fp8_linear(
    x_TI: torch.Tensor,
    weight_OI: torch.Tensor,
    weight_scale: torch.Tensor,
    bias_O: torch.Tensor | None,
    input_scale: torch.Tensor | None,
) -> torch.Tensor:
    """Triton back end of `ops.fp8_linear`."""
    check_fp8_linear(x_TI, weight_OI, weight_scale, bias_O, input_scale)
    check_contiguous("weight_OI", weight_OI)
    check_inner_contiguous(x_TI=x_TI)
    values_TI = torch.empty(x_TI.shape, dtype=E4M3, device=x_TI.device)
    scales_TG = empty_scales(x_TI.shape[0], x_TI.shape[1], weight_scale)
    launch_quantization(values_TI, scales_TG, x_TI, scale=input_scale)
    return _multiplied(values_TI, scales_TG, weight_OI, weight_scale, bias_O, x_TI.dtype)


def fp8_product(
    values_TI: torch.Tensor,
    scales_TG: torch.Tensor,
    weight_OI: torch.Tensor,
    weight_scale: torch.Tensor,
    bias_O: torch.Tensor | None,
    dtype: torch.dtype,
) -> torch.Tensor:
    """Triton back end of `ops.fp8_product`."""
    check_fp8_product(values_TI, scales_TG, weight_OI, weight_scale, bias_O)
    check_contiguous("values_TI", values_TI)
    check_contiguous("weight_OI", weight_OI)
    return _multiplied(values_TI, scales_TG, weight_OI, weight_scale, bias_O, dtype)


def empty_scales(tokens: int, size: int, weight_scale: torch.Tensor) -> torch.Tensor:
    """Room for the scales of activations that go with a weight: [T, 1] or [T, G], tokens side by side."""
    groups = num_groups(size) if weight_scale.ndim == 2 else 1
    return torch.empty((groups, tokens), dtype=torch.float32, device=weight_scale.device).t()


def _multiplied(
    values_TI: torch.Tensor,
    scales_TG: torch.Tensor,
    weight_OI: torch.Tensor,
    weight_scale: torch.Tensor,
    bias_O: torch.Tensor | None,
    dtype: torch.dtype,
) -> torch.Tensor:
    if weight_scale.ndim == 0:
        weight_scale = weight_scale.expand(weight_OI.shape[0]).contiguous()
    (tokens, inputs), outputs = values_TI.shape, weight_OI.shape[0]
    if dtype == torch.bfloat16 and tokens > 0 and _capability(values_TI.device) >= (9, 0):
        is_plain = weight_scale.ndim == 1 and outputs % _TORCH_MULTIPLE == 0 and inputs % _TORCH_MULTIPLE == 0
        if is_plain and not _is_one_wave(tokens, outputs):
            return torch._scaled_mm(
                values_TI,
                weight_OI.t(),
                scale_a=scales_TG,
                scale_b=weight_scale.contiguous().view(1, outputs),
                bias=None if bias_O is None else bias_O.to(dtype),
                out_dtype=dtype,
                use_fast_accum=True,
            )
        if scales_TG.shape[1] > 1 and _torch_takes_blocks(weight_OI, weight_scale):
            return _torch_block_product(values_TI, scales_TG, weight_OI, weight_scale, bias_O, dtype)
    return _product(values_TI, scales_TG, weight_OI, weight_scale, bias_O, dtype)


def _is_one_wave(tokens: int, outputs: int) -> bool:
    """Whether small tiles give nearly every multiprocessor of an H200 one: faster than torch's product."""
    tiles = ceil_div(tokens, _SMALL_TILE[0]) * ceil_div(outputs, _SMALL_TILE[1])
    return _SMALL_TILE[0] < tokens <= _MOST_SMALL and _ONE_WAVE[0] <= tiles <= _ONE_WAVE[1]


def _torch_takes_blocks(weight_OI: torch.Tensor, weight_scale: torch.Tensor) -> bool:
    """Hopper alone has these products."""
    outputs, inputs = weight_OI.shape
    if outputs % GROUP != 0 or inputs % _TORCH_BLOCK_MULTIPLE != 0 or not weight_scale.is_contiguous():
        return False
    return _capability(weight_OI.device) == (9, 0)


def _torch_block_product(
    values_TI: torch.Tensor,
    scales_TG: torch.Tensor,
    weight_OI: torch.Tensor,
    weight_scale: torch.Tensor,
    bias_O: torch.Tensor | None,
    dtype: torch.dtype,
) -> torch.Tensor:
    """The scales of a group's tokens must lie side by side, in a multiple of 16 bytes."""
    (tokens, inputs), groups = values_TI.shape, scales_TG.shape[1]
    padded = ceil_div(tokens, _TORCH_TOKENS) * _TORCH_TOKENS
    if padded > tokens:
        whole_TI = torch.zeros((padded, inputs), dtype=torch.uint8, device=values_TI.device)
        whole_TI[:tokens] = values_TI.view(torch.uint8)
        values_TI = whole_TI.view(E4M3)
    if padded > tokens or scales_TG.stride() != (1, tokens):
        whole_TG = torch.zeros((groups, padded), dtype=torch.float32, device=scales_TG.device).t()
        whole_TG[:tokens] = scales_TG
        scales_TG = whole_TG
    out_TO = torch._scaled_mm(
        values_TI, weight_OI.t(), scale_a=scales_TG, scale_b=weight_scale.t(), out_dtype=dtype
    )[:tokens]
    return out_TO if bias_O is None else out_TO.add_(bias_O)


@cache
def _capability(device: torch.device) -> tuple[int, int]:
    return torch.cuda.get_device_capability(device) if device.type == "cuda" else (0, 0)


def _product(
    values_TI: torch.Tensor,
    scales_TG: torch.Tensor,
    weight_OI: torch.Tensor,
    weight_scale: torch.Tensor,
    bias_O: torch.Tensor | None,
    dtype: torch.dtype,
) -> torch.Tensor:
    (tokens, inputs), outputs = values_TI.shape, weight_OI.shape[0]
    out_TO = torch.empty((tokens, outputs), dtype=dtype, device=values_TI.device)
    if out_TO.numel() == 0:
        return out_TO
    block_m = min(128, max(16, power_of_2(tokens)))
    if _is_one_wave(tokens, outputs):
        block_m = _SMALL_TILE[0]
    block_n = 128
    tiles = ceil_div(tokens, block_m) * ceil_div(outputs, block_n)
    scaled_product_kernel[(tiles,)](
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
        num_stages=4 if block_m == 128 else 5,
        **launch_options(values_TI.device),
    )
    return out_TO
