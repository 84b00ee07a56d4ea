"""Batch-invariant mixtures of experts in Triton: the kernels of experts.py with tiles whose sums are alike.

Pairs are sorted by expert into blocks of at least 64 rows, so that on Hopper all tiles run on wgmma and every
output is one chain of sums; a token's experts are added in the order in which it chose them.
"""

from __future__ import annotations

import torch

from llm_kernels.checks import check_gate_options, check_inner_contiguous
from llm_kernels.expert_mlp import ExpertMlp
from llm_kernels.triton.experts import moe_by_expert
from llm_kernels.triton.experts_tiles import ExpertTiles, Tile

_FLOAT32 = ExpertTiles(
    block_m=16,
    up=Tile(block_n=64, block_k=32, num_warps=4, num_stages=3),
    down=Tile(block_n=64, block_k=32, num_warps=4, num_stages=3),
)
# Up to so many pairs an expert, and more. e4m3 weights multiply quantized rows in both.
_FEW = 60
_FEW_PAIRS = ExpertTiles(
    block_m=64,
    up=Tile(block_n=64, block_k=64, num_warps=4, num_stages=4, descriptor=True),
    down=Tile(block_n=128, block_k=64, num_warps=4, num_stages=4, descriptor=True),
    narrow=True,
)
_MANY_PAIRS = ExpertTiles(
    block_m=128,
    up=Tile(block_n=128, block_k=64, num_warps=8, num_stages=4, descriptor=True),
    down=Tile(block_n=128, block_k=64, num_warps=8, num_stages=4, descriptor=True),
    narrow=True,
)


def invariant_tiles(dtype: torch.dtype, num_pairs: int, num_experts: int) -> ExpertTiles:
    """The tiles after the mean number of pairs an expert, which changes no sum."""
    if dtype == torch.float32:
        return _FLOAT32
    return _FEW_PAIRS if num_pairs <= _FEW * num_experts else _MANY_PAIRS


def moe(
    out_TE: torch.Tensor, x_TE: torch.Tensor, weights_TK: torch.Tensor, ids_TK: torch.Tensor, mlp: ExpertMlp
) -> None:
    """Batch-invariant back end of `ops.moe`."""
    mlp.check(out_TE, x_TE, weights_TK, ids_TK)
    check_gate_options(mlp.activation, mlp.limit, mlp.alpha)
    check_inner_contiguous(out_TE=out_TE, x_TE=x_TE, up=mlp.up, down=mlp.down)
    for field in ("up_bias", "down_bias", "up_scale", "down_scale"):
        if (given := getattr(mlp, field)) is not None:
            check_inner_contiguous(**{field: given})
    if x_TE.shape[0] == 0:
        return
    tiles = invariant_tiles(x_TE.dtype, ids_TK.numel(), mlp.down.shape[0])
    moe_by_expert(out_TE, x_TE, weights_TK.contiguous(), ids_TK.contiguous(), mlp, tiles)
