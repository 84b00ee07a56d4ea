"""Grouped linear and mixtures of experts in Triton: launches and tiles. Nothing here waits for the device."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton

from llm_kernels.checks import check_gate_options, check_grouped_linear, check_inner_contiguous
from llm_kernels.expert_mlp import ExpertMlp
from llm_kernels.triton import experts_kernels as kernels
from llm_kernels.triton.activation import activation, gated_activation

# Up to so many comparisons each program of the sort counts the pairs of all experts itself: a launch saved.
_COUNT_IN_PLACE = 16384
_CHUNK = 1024
_COMBINE_BLOCK = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class GemmTile:
    """Tile and pipeline of the grouped product."""

    block_m: int
    block_n: int
    block_k: int
    num_warps: int
    num_stages: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Blocks:
    """Pairs sorted by expert, in blocks; pairs int32 [B * block_m], experts int32 [B] (-1: no block)."""

    pairs: torch.Tensor
    experts: torch.Tensor


def gemm_tile(dtype: torch.dtype, num_pairs: int, num_experts: int) -> GemmTile:
    """Rows a tile after the mean number of pairs an expert: what is known without reading the ids."""
    mean = num_pairs / num_experts
    if dtype == torch.float32:
        block_m = 16 if mean <= 16 else 64
        return GemmTile(block_m=block_m, block_n=64, block_k=32, num_warps=4, num_stages=3)
    if mean <= 16:
        return GemmTile(block_m=16, block_n=64, block_k=128, num_warps=4, num_stages=4)
    if mean <= 32:
        return GemmTile(block_m=32, block_n=128, block_k=64, num_warps=4, num_stages=4)
    if mean <= 96:
        return GemmTile(block_m=64, block_n=128, block_k=64, num_warps=4, num_stages=4)
    return GemmTile(block_m=128, block_n=128, block_k=64, num_warps=8, num_stages=3)


def grouped_linear(
    out_PO: torch.Tensor,
    x_PI: torch.Tensor,
    weight_NOI: torch.Tensor,
    expert_ids: torch.Tensor,
    bias_NO: torch.Tensor | None,
) -> None:
    """Triton back end of `ops.grouped_linear`."""
    check_grouped_linear(out_PO, x_PI, weight_NOI, expert_ids, bias_NO)
    check_inner_contiguous(out_PO=out_PO, x_PI=x_PI, weight_NOI=weight_NOI)
    if x_PI.shape[0] == 0:
        return
    num_experts = weight_NOI.shape[0]
    out_PO.masked_fill_(((expert_ids < 0) | (expert_ids >= num_experts)).unsqueeze(-1), 0)
    tile = gemm_tile(x_PI.dtype, x_PI.shape[0], num_experts)
    blocks = sort_by_expert(expert_ids, num_experts, tile.block_m)
    _multiply(out_PO, x_PI, weight_NOI, bias_NO, blocks, tile, pairs_per_row=1, weights=None, scale="none")


def moe(
    out_TE: torch.Tensor, x_TE: torch.Tensor, weights_TK: torch.Tensor, ids_TK: torch.Tensor, mlp: ExpertMlp
) -> None:
    """Triton back end of `ops.moe`."""
    mlp.check(out_TE, x_TE, weights_TK, ids_TK)
    check_gate_options(mlp.activation, mlp.limit, mlp.alpha)
    check_inner_contiguous(out_TE=out_TE, x_TE=x_TE, up=mlp.up, down=mlp.down)
    num_tokens, size = x_TE.shape
    if num_tokens == 0:
        return
    top_k, num_experts = ids_TK.shape[1], mlp.down.shape[0]
    ids, weights = ids_TK.reshape(-1), weights_TK.reshape(-1)
    tile = gemm_tile(x_TE.dtype, ids.numel(), num_experts)
    blocks = sort_by_expert(ids, num_experts, tile.block_m)
    inner = _inner(x_TE, weights, blocks, tile, mlp, top_k)
    outputs = x_TE.new_empty(ids.numel(), size)
    scale = "none" if mlp.weight_input else "after_bias"
    _multiply(
        outputs, inner, mlp.down, mlp.down_bias, blocks, tile, pairs_per_row=1, weights=weights, scale=scale
    )
    kernels.combine_kernel[(num_tokens, triton.cdiv(size, _COMBINE_BLOCK))](
        out_TE,
        outputs,
        x_TE,
        ids,
        weights,
        out_TE.stride(0),
        outputs.stride(0),
        x_TE.stride(0),
        num_experts,
        size,
        ZERO_EXPERTS=mlp.zero_experts,
        K=top_k,
        BLOCK=_COMBINE_BLOCK,
        num_warps=4,
    )


def sort_by_expert(ids: torch.Tensor, num_experts: int, block_m: int) -> Blocks:
    """Sorts the pairs into blocks of one expert each, keeping their order; ids out of range are left out."""
    num_pairs = ids.numel()
    touched = min(num_pairs, num_experts)
    max_blocks = min(num_pairs, (num_pairs + touched * (block_m - 1)) // block_m)
    pairs = ids.new_empty(max_blocks * block_m, dtype=torch.int32)
    block_experts = ids.new_empty(max_blocks, dtype=torch.int32)
    padded, all_pairs = triton.next_power_of_2(num_experts), triton.next_power_of_2(num_pairs)
    counted = padded * all_pairs > _COUNT_IN_PLACE
    counts = block_experts
    if counted:
        counts = ids.new_empty(num_experts, dtype=torch.int32)
        kernels.count_kernel[(num_experts,)](ids, counts, num_pairs, CHUNK=_CHUNK, num_warps=4)
    kernels.align_kernel[(num_experts,)](
        ids,
        counts,
        pairs,
        block_experts,
        num_pairs,
        num_experts,
        max_blocks,
        COUNTED=counted,
        N_PAD=padded,
        CHUNK=_CHUNK if counted else all_pairs,
        BLOCK_M=block_m,
        num_warps=4 if counted else 8,
    )
    return Blocks(pairs=pairs, experts=block_experts)


def _inner(
    x_TE: torch.Tensor, weights: torch.Tensor, blocks: Blocks, tile: GemmTile, mlp: ExpertMlp, top_k: int
) -> torch.Tensor:
    """The experts' inner layer after the activation: [P, I]. Rows of pairs without expert hold anything."""
    num_pairs = x_TE.shape[0] * top_k
    projected = x_TE.new_empty(num_pairs, mlp.up.shape[1])
    scale = "before_bias" if mlp.weight_input else "none"
    _multiply(
        projected, x_TE, mlp.up, mlp.up_bias, blocks, tile, pairs_per_row=top_k, weights=weights, scale=scale
    )
    if not mlp.gated:
        activation(projected, projected, mlp.activation, None)
        return projected
    inner = x_TE.new_empty(num_pairs, mlp.down.shape[2])
    gated_activation(inner, projected, mlp.activation, mlp.limit, mlp.alpha)
    return inner


def _multiply(
    out: torch.Tensor,
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    blocks: Blocks,
    tile: GemmTile,
    *,
    pairs_per_row: int,
    weights: torch.Tensor | None,
    scale: str,
) -> None:
    out_size, in_size = weight.shape[1:]
    if bias is not None:
        check_inner_contiguous(bias=bias)
    num_blocks = blocks.experts.numel()
    kernels.grouped_gemm_kernel[(num_blocks * triton.cdiv(out_size, tile.block_n),)](
        out,
        x,
        weight,
        weight if bias is None else bias,
        x if weights is None else weights,
        blocks.pairs,
        blocks.experts,
        out.stride(0),
        x.stride(0),
        weight.stride(0),
        weight.stride(1),
        0 if bias is None else bias.stride(0),
        out.shape[0],
        num_blocks,
        out_size,
        in_size,
        PAIRS_PER_ROW=pairs_per_row,
        HAS_BIAS=bias is not None,
        SCALE=scale,
        EVEN_K=in_size % tile.block_k == 0,
        BLOCK_M=tile.block_m,
        BLOCK_N=tile.block_n,
        BLOCK_K=tile.block_k,
        GROUP_M=8,
        PRECISION="ieee" if x.dtype == torch.float32 else "tf32",
        num_warps=tile.num_warps,
        num_stages=tile.num_stages,
    )
