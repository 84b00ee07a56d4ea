"""Products of many tokens by tiles, in CUDA C++ for Hopper: the wrappers of csrc/cuda/gemm."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from llm_kernels.cuda.library import invalid, native

_tiled_linear = native("tiled_linear")


@dataclass(frozen=True, slots=True)
class Tiles:
    """How a product is cut; the meaning of each number is in csrc/include/llm_kernels/cuda/gemm.h.

    Args:
        groups: Warpgroups that multiply, 1 to 3.
        blocks: Blocks of 64 rows of the weights a warpgroup.
        tokens: Of a tile.
        split: Parts of I, added up within a cluster.
        pair: 2: two tiles of neighbouring rows share what they read of the tokens; else 1.
    """

    groups: int
    blocks: int
    tokens: int
    split: int = 1
    pair: int = 1


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
