"""Sorts pairs of token and expert by expert into blocks, on the device; knows nothing of products."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from llm_kernels.triton import experts_sort_kernels as kernels
from llm_kernels.triton.dependent_launch import launch_options
from llm_kernels.triton.launch_sizes import ceil_div, power_of_2

# Up to so many pairs each expert's program reads them all: one launch instead of three.
_READ_BY_ALL = 4096
_CHUNK = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class Blocks:
    """Pairs sorted by expert, in blocks.

    Attributes:
        pairs: int32 [B * block_m]: the number of a pair; the number of pairs where there is none.
        experts: int32 [B]: the expert of a block; -1: no block.
        block_m: Rows of a block.
    """

    pairs: torch.Tensor
    experts: torch.Tensor
    block_m: int


def most_blocks(num_pairs: int, num_experts: int, block_m: int) -> int:
    """Blocks that suffice however the pairs fall; known without reading the ids."""
    touched = min(num_pairs, num_experts)
    return min(num_pairs, (num_pairs + touched * (block_m - 1)) // block_m)


def sort_by_expert(ids: torch.Tensor, num_experts: int, block_m: int) -> Blocks:
    """Sorts the pairs into blocks of one expert each, keeping their order; ids out of range are left out."""
    num_pairs = ids.numel()
    max_blocks = most_blocks(num_pairs, num_experts, block_m)
    pairs = ids.new_empty(max_blocks * block_m, dtype=torch.int32)
    experts = ids.new_empty(max_blocks, dtype=torch.int32)
    blocks = Blocks(pairs=pairs, experts=experts, block_m=block_m)
    if num_pairs <= _READ_BY_ALL:
        kernels.sort_kernel[(num_experts,)](
            ids,
            pairs,
            experts,
            num_pairs,
            num_experts,
            max_blocks,
            N_PAD=power_of_2(num_experts + 1),
            P_PAD=max(power_of_2(num_pairs), 32),
            BLOCK_M=block_m,
            num_warps=4 if num_pairs <= 1024 else 8,
            **launch_options(ids.device),
        )
    else:
        _sort_many(ids, blocks, num_experts, max_blocks)
    return blocks


def _sort_many(ids: torch.Tensor, blocks: Blocks, num_experts: int, max_blocks: int) -> None:
    num_pairs, padded = ids.numel(), power_of_2(num_experts + 1)
    num_chunks = ceil_div(num_pairs, _CHUNK)
    counts = ids.new_empty(num_experts, num_chunks, dtype=torch.int32)
    totals = ids.new_empty(num_experts, dtype=torch.int32)
    options = launch_options(ids.device)
    kernels.count_kernel[(num_chunks,)](
        ids,
        counts,
        num_pairs,
        num_experts,
        num_chunks,
        N_PAD=padded,
        CHUNK=_CHUNK,
        num_warps=4,
        **options,
    )
    kernels.offset_kernel[(num_experts,)](counts, totals, num_chunks, LANES=1024, num_warps=4, **options)
    kernels.scatter_kernel[(num_chunks + num_experts,)](
        ids,
        counts,
        totals,
        blocks.pairs,
        blocks.experts,
        num_pairs,
        num_experts,
        num_chunks,
        max_blocks,
        N_PAD=padded,
        CHUNK=_CHUNK,
        BLOCK_M=blocks.block_m,
        num_warps=8,
        **options,
    )
