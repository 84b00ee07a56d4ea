"""The tiles of the expert kernels by dtype and pairs an expert; knows nothing about launches."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True, kw_only=True)
class Tile:
    """Tile and pipeline of one product.

    Attributes:
        block_n: Outputs of a program (of the gate, and as many of up, where there is a gate).
        block_k: Inputs a step.
        num_warps: Warps of a program.
        num_stages: Steps whose loads are in flight.
        descriptor: Whether the bulk copy engine reads the weights, where their layout allows it.
        group_m: Blocks that run together over all outputs.
    """

    block_n: int
    block_k: int
    num_warps: int
    num_stages: int
    descriptor: bool = False
    group_m: int = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertTiles:
    """Tiles of both products, which share the rows of a block.

    Attributes:
        block_m: Those rows.
        up: Of the first product.
        down: Of the second.
        narrow: Whether rows are quantized first, to multiply e4m3 weights; otherwise these are widened.
    """

    block_m: int
    up: Tile
    down: Tile
    narrow: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenTiles:
    """Of the kernels for a few tokens: weights a program has in flight, up and down, and their warps."""

    up_weights: int
    up_warps: int
    down_weights: int
    down_warps: int


_FLOAT32 = Tile(block_n=64, block_k=32, num_warps=4, num_stages=3)

# Pairs an expert up to which a row applies. Measured on an H200 with torch 2.11, triton 3.6, 128 experts of
# 2048 x 768, top 8: benchmarks/gpu/experts_tiles.py, 2026-11-30.
_HALF = (
    (
        12,
        ExpertTiles(
            block_m=16,
            up=Tile(block_n=64, block_k=256, num_warps=4, num_stages=2, descriptor=True),
            down=Tile(block_n=64, block_k=128, num_warps=4, num_stages=4, descriptor=True),
        ),
    ),
    (
        40,
        ExpertTiles(
            block_m=32,
            up=Tile(block_n=64, block_k=128, num_warps=4, num_stages=3, descriptor=True),
            down=Tile(block_n=128, block_k=64, num_warps=4, num_stages=4, descriptor=True),
        ),
    ),
    (
        60,
        ExpertTiles(
            block_m=64,
            up=Tile(block_n=64, block_k=64, num_warps=4, num_stages=4, descriptor=True),
            down=Tile(block_n=128, block_k=64, num_warps=4, num_stages=4, descriptor=True),
        ),
    ),
    (
        None,
        ExpertTiles(
            block_m=128,
            up=Tile(block_n=128, block_k=64, num_warps=8, num_stages=4, descriptor=True),
            down=Tile(block_n=256, block_k=64, num_warps=8, num_stages=4, descriptor=True, group_m=4),
        ),
    ),
)
# Of e4m3 weights.
_E4M3 = (
    (
        12,
        ExpertTiles(
            block_m=16,
            up=Tile(block_n=32, block_k=128, num_warps=4, num_stages=4, descriptor=True),
            down=Tile(block_n=128, block_k=128, num_warps=4, num_stages=3, descriptor=True),
        ),
    ),
    (
        40,
        ExpertTiles(
            block_m=32,
            up=Tile(block_n=64, block_k=128, num_warps=4, num_stages=4, descriptor=True),
            down=Tile(block_n=128, block_k=128, num_warps=4, num_stages=4, descriptor=True),
        ),
    ),
    (
        60,
        ExpertTiles(
            block_m=64,
            up=Tile(block_n=64, block_k=64, num_warps=4, num_stages=4, descriptor=True),
            down=Tile(block_n=128, block_k=64, num_warps=4, num_stages=4, descriptor=True),
        ),
    ),
    (
        None,
        ExpertTiles(
            block_m=128,
            up=Tile(block_n=128, block_k=128, num_warps=8, num_stages=4, descriptor=True),
            down=Tile(block_n=128, block_k=128, num_warps=4, num_stages=3, descriptor=True),
            narrow=True,
        ),
    ),
)
TOKEN_TILES = TokenTiles(up_weights=16384, up_warps=4, down_weights=32768, down_warps=4)


def expert_tiles(
    dtype: torch.dtype, num_pairs: int, num_experts: int, *, is_quantized: bool = False
) -> ExpertTiles:
    """The tiles after the mean number of pairs an expert: what is known without reading the ids."""
    mean = num_pairs / num_experts
    if dtype == torch.float32:
        return ExpertTiles(block_m=16 if mean <= 16 else 64, up=_FLOAT32, down=_FLOAT32)
    table = _E4M3 if is_quantized else _HALF
    return next(tiles for most, tiles in table if most is None or mean <= most)


def is_by_token(num_tokens: int, num_experts: int) -> bool:
    """Whether few tokens go to so many experts that reading each pair's weights for itself is best."""
    return num_tokens <= 2 and num_experts > 1
