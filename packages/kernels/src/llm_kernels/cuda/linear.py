"""Products of few tokens that stream the weights, in CUDA C++ for Hopper: the wrappers of csrc/cuda/linear.

Up to how many tokens is by measurement (docs/performance.md); above that products by tiles where they were
measured to be faster, and cuBLAS.
"""

from __future__ import annotations

from typing import TypeAlias

import torch
import torch.nn.functional as F

from llm_kernels.cuda.fp8_panels import panels
from llm_kernels.cuda.fp8_plans import MOST_FEW, few_plan
from llm_kernels.cuda.gemm import tiled
from llm_kernels.cuda.gemm_tiles import Tiles, measured
from llm_kernels.cuda.library import invalid, native
from llm_kernels.ops.activation import ActivationKind
from llm_kernels.ops.gated_linear import composed

Plan: TypeAlias = tuple[int, int, int, int, int]
"""tiles, split, resident, rows and unroll of csrc/include/llm_kernels/cuda/linear.h."""
BY_SHAPE: Plan = (0, 0, 0, 0, 0)

MOST_TOKENS = 64
GATES = {"silu": 1, "gelu": 2, "gelu_tanh": 3}
"""Activations of the kernels' gates, as they number them."""

_streamed_linear = native("streamed_linear")


def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """CUDA back end of `ops.linear`: bfloat16; torch's (cuBLAS) where the kernels take no such product."""
    tiles = _tiles_of(x, weight, bias, gated=False)
    if tiles is None and not takes(x, weight, bias):
        return F.linear(x, weight, bias)
    out = torch.empty((x.shape[0], weight.shape[0]), dtype=x.dtype, device=x.device)
    if tiles is not None:
        tiled(out, x, weight, bias, 0, tiles)
    else:
        streamed(out, x, weight, bias, None, 0)
    return out


def gated_linear(
    x: torch.Tensor,
    weight: torch.Tensor,
    kind: ActivationKind,
    bias: torch.Tensor | None,
    weight_scale: torch.Tensor | None,
) -> torch.Tensor:
    """CUDA back end of `ops.gated_linear`; product and activation one by one where no kernel takes both."""
    inner = weight.shape[0] // 2
    tiles = None if weight_scale is not None else _tiles_of(x, weight, bias, gated=True)
    if tiles is not None:
        out = torch.empty((x.shape[0], inner), dtype=x.dtype, device=x.device)
        tiled(out, x, weight, bias, GATES[kind], tiles)
        return out
    # Tiles of 64 rows must not straddle two blocks of scales.
    unit = 8 if weight_scale is None or weight_scale.ndim < 2 else 64
    if inner % unit != 0 or not takes(x, weight, bias, weight_scale):
        return composed(x, weight, kind, bias, weight_scale)
    out = torch.empty((x.shape[0], inner), dtype=x.dtype, device=x.device)
    is_few = weight_scale is not None and weight_scale.ndim < 2 and x.shape[0] <= MOST_FEW
    plan = few_plan(weight.shape[0], weight.shape[1], gated=True) if is_few else None
    if plan is None or weight_scale is None:
        streamed(out, x, weight, bias, weight_scale, GATES[kind])
    else:
        panels(out, x, None, weight, weight_scale, bias, GATES[kind], plan)
    return out


def has_aligned_rows(x: torch.Tensor) -> bool:
    """Whether the rows of a matrix are contiguous and start at multiples of 16 bytes."""
    stride, inner = x.stride()
    return inner == 1 and (stride * x.element_size()) % 16 == 0 and x.data_ptr() % 16 == 0


def most_tokens(weight: torch.Tensor) -> int:
    """Up to how many tokens the kernels are faster than torch's product, by measurement."""
    if weight.dtype != torch.bfloat16:
        return MOST_TOKENS
    out_size, in_size = weight.shape
    is_large = in_size >= 4096 and out_size >= 4096
    return MOST_TOKENS if is_large or in_size >= 3 * out_size else 32


def takes(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, scale: torch.Tensor | None = None
) -> bool:
    """Whether the kernels do this product: few tokens, sizes and addresses the copy engine reads."""
    return x.shape[0] <= most_tokens(weight) and _is_readable(x, weight, bias, scale)


def _tiles_of(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, *, gated: bool
) -> Tiles | None:
    """The tiles of a bfloat16 product that is faster by tiles; None: there are none."""
    tiles = measured(x.shape[0], weight.shape[0], weight.shape[1], gated)
    return tiles if tiles is not None and _is_readable(x, weight, bias, None) else None


def _is_readable(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, scale: torch.Tensor | None
) -> bool:
    """Whether the copy engine reads such sizes, number formats and addresses, and no gradient is wanted."""
    if x.ndim != 2 or x.shape[0] == 0:
        return False
    if weight.dtype != (x.dtype if scale is None else torch.float8_e4m3fn):
        return False
    if torch.is_grad_enabled() and (x.requires_grad or weight.requires_grad):
        return False
    out_size, in_size = weight.shape
    if out_size % 8 != 0 or in_size % (8 if scale is None else 16) != 0 or out_size == 0 or in_size == 0:
        return False
    if bias is not None and (bias.dtype != x.dtype or not bias.is_contiguous()):
        return False
    return has_aligned_rows(x) and has_aligned_rows(weight)


def streamed(
    out: torch.Tensor,
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    scale: torch.Tensor | None,
    gate: int,
    plan: Plan = BY_SHAPE,
    token_scale: torch.Tensor | None = None,
) -> None:
    """One launch into `out`.

    Args:
        out: [T, O] or, with a gate, [T, O / 2].
        x: [T, I].
        weight: [O, I], dtype of `x`, or float8_e4m3fn with a `scale`.
        bias: [O] or None.
        scale: float32: one value, [O] or [ceil(O / 128), ceil(I / 128)].
        gate: 0: none, 1: silu, 2: gelu, 3: gelu_tanh.
        plan: How the product is cut; for measurements and tests.
        token_scale: float32 [T, 1], with float8_e4m3fn `x` and `weight`; no gate and no blocks of scales.

    Raises:
        InvalidArgument: Shapes, dtypes or addresses that no kernel takes.
    """
    try:
        _streamed_linear(out, x, weight, bias, scale, token_scale, gate, *plan, True)
    except ValueError as error:
        raise invalid(error) from None
