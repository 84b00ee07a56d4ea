"""Batch-invariant matrix products on Hopper: the Triton kernels for few rows, csrc/cuda/gemm for many.

Both add up an output along all inputs on wgmma, 16 at a time, and have the same bits
(test_kernels_invariance_gpu); a product that is cut along its inputs has not.
"""

from __future__ import annotations

import torch

from llm_kernels.cuda.gemm import tiled
from llm_kernels.cuda.gemm_tiles import Tiles
from llm_kernels.cuda.linear import has_aligned_rows
from llm_kernels.triton import invariant_linear
from llm_kernels.triton.launch_sizes import ceil_div

_FEW_TOKENS, _SOME_TOKENS = 64, 512
_FEW_TILES = 64


def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """Batch-invariant back end of `ops.linear` for bfloat16."""
    if not _takes(x, weight, bias):
        return invariant_linear.linear(x, weight, bias)
    out = torch.empty((x.shape[0], weight.shape[0]), dtype=x.dtype, device=x.device)
    tiled(out, x, weight, bias, 0, unsplit_tiles(x.shape[0], weight.shape[0]))
    return out


def unsplit_tiles(tokens: int, out_size: int) -> Tiles:
    """Tiles that add up all inputs: small ones where few of 128 x 128 would do, large ones for many tokens.

    As measured on an H200 at 256, 1,024 and 8,192 tokens (docs/performance.md).
    """
    if ceil_div(tokens, 128) * ceil_div(out_size, 128) < _FEW_TILES:
        return Tiles(1, 1, 64)
    return Tiles(2, 1, 128 if tokens <= _SOME_TOKENS else 256)


def _takes(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> bool:
    """Whether csrc/cuda/gemm does this product, and there are many rows."""
    if x.ndim != 2 or x.shape[0] <= _FEW_TOKENS or weight.ndim != 2 or weight.dtype != x.dtype:
        return False
    out_size, in_size = weight.shape
    if out_size % 8 != 0 or in_size % 8 != 0 or x.shape[1] != in_size:
        return False
    if bias is not None and (bias.dtype != x.dtype or not bias.is_contiguous()):
        return False
    return has_aligned_rows(x) and has_aligned_rows(weight)
