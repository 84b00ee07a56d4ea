"""Products of few tokens with e4m3 weights, in CUDA C++ for Hopper: activations stay bfloat16.

Up to how many tokens is by measurement (docs/performance.md); above that activations are quantized and e4m3
multiplies e4m3, as in the Triton back end.
"""

from __future__ import annotations

import torch

from llm_kernels.cuda.linear import has_aligned_rows, streamed
from llm_kernels.reference.fp8_linear import check_fp8_linear
from llm_kernels.triton import fp8_linear as quantizing

_MOST_TOKENS = 64


def fp8_linear(
    x_TI: torch.Tensor,
    weight_OI: torch.Tensor,
    weight_scale: torch.Tensor,
    bias_O: torch.Tensor | None,
    input_scale: torch.Tensor | None,
) -> torch.Tensor:
    """CUDA back end of `ops.fp8_linear`: bfloat16 activations; few tokens do not need `input_scale`."""
    if not _takes(x_TI, weight_OI, bias_O):
        return quantizing.fp8_linear(x_TI, weight_OI, weight_scale, bias_O, input_scale)
    check_fp8_linear(x_TI, weight_OI, weight_scale, bias_O, input_scale)
    out_TO = torch.empty((x_TI.shape[0], weight_OI.shape[0]), dtype=x_TI.dtype, device=x_TI.device)
    streamed(out_TO, x_TI, weight_OI, bias_O, weight_scale, 0)
    return out_TO


def _takes(x_TI: torch.Tensor, weight_OI: torch.Tensor, bias_O: torch.Tensor | None) -> bool:
    """Whether the kernels do this product: few tokens, sizes and addresses the copy engine reads."""
    if not 0 < x_TI.shape[0] <= _MOST_TOKENS:
        return False
    out_size, in_size = weight_OI.shape
    if out_size % 8 != 0 or in_size % 16 != 0 or (bias_O is not None and bias_O.dtype != x_TI.dtype):
        return False
    return has_aligned_rows(x_TI) and has_aligned_rows(weight_OI)
