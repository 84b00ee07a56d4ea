"""Sorting of many pairs by expert in CUDA C++ for Hopper: the wrapper of csrc/cuda/experts/expert_sort.cu."""

from __future__ import annotations

import torch

from llm_kernels.cuda.library import invalid, native
from llm_kernels.triton.experts_sort import Blocks, most_blocks
from llm_kernels.triton.experts_sort import sort_by_expert as triton_sort
from llm_kernels.triton.launch_sizes import ceil_div

LEAST_PAIRS = 4097
"""Pairs from which the kernels are used; fewer take Triton's kernel a single launch."""
# Pairs of a block of threads, and most experts: kSortChunk and kMostSortExperts of expert_sort.h.
_CHUNK, _MOST_EXPERTS = 1024, 512

_sort_by_expert = native("sort_by_expert")


def sort_by_expert(ids: torch.Tensor, num_experts: int, block_m: int) -> Blocks:
    """The pairs of ids [P] in blocks, as `llm_kernels.triton.experts_sort.sort_by_expert` has them."""
    num_pairs = ids.numel()
    if num_pairs < LEAST_PAIRS or num_experts > _MOST_EXPERTS:
        return triton_sort(ids, num_experts, block_m)
    num_blocks = most_blocks(num_pairs, num_experts, block_m)
    counts = ids.new_empty(ceil_div(num_pairs, _CHUNK) * num_experts, dtype=torch.int32)
    pairs = ids.new_empty(num_blocks * block_m, dtype=torch.int32)
    experts = ids.new_empty(num_blocks, dtype=torch.int32)
    try:
        _sort_by_expert(ids, counts, pairs, experts, num_experts, block_m, True)
    except ValueError as error:
        raise invalid(error) from None
    return Blocks(pairs=pairs, experts=experts, block_m=block_m)
