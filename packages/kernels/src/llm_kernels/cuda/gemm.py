"""Products of many tokens by tiles, in CUDA C++ for Hopper: the wrappers of csrc/cuda/gemm."""

from __future__ import annotations

import torch

from llm_kernels.cuda.gemm_tiles import Tiles
from llm_kernels.cuda.library import invalid, native

_tiled_linear = native("tiled_linear")

__all__ = ["Tiles", "tiled"]


def tiled(
    out: torch.Tensor,
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    gate: int,
    tiles: Tiles,
) -> None:
    """One launch into `out`; sums in float32, in an order that depends on `tiles` alone.

    Args:
        out: bfloat16 [T, O] or, with a gate, [T, O / 2].
        x: bfloat16 [T, I].
        weight: bfloat16 [O, I].
        bias: bfloat16 [O] or None.
        gate: 0: none, 1: silu, 2: gelu, 3: gelu_tanh.
        tiles: How the product is cut.

    Raises:
        InvalidArgument: Shapes, dtypes, addresses or tiles that no kernel takes.
    """
    try:
        _tiled_linear(
            out,
            x,
            weight,
            bias,
            gate,
            tiles.groups,
            tiles.blocks,
            tiles.tokens,
            tiles.split,
            tiles.pair,
            True,
        )
    except ValueError as error:
        raise invalid(error) from None
