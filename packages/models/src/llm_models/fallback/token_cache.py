"""Owns a cache of token ids, for models that run the whole sequence again; knows nothing about models.

The ids lie in blocks like keys do. Prefix hits, chunks, batches and preemption then give a row its whole past
by the same rules as for attention.
"""

from dataclasses import dataclass

import torch
from llm_kernels.ops import AttentionMetadata
from torch import Tensor

from llm_models.caches import KVCacheSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenCacheSpec(KVCacheSpec):
    """The ids of a sequence's tokens; for the engine a full-attention cache of four bytes a token."""

    num_kv_heads: int = 1
    head_size: int = 1
    value_size: int = 1

    def shapes(self, num_blocks: int, block_size: int) -> tuple[tuple[int, ...], ...]:
        """One cache [blocks, block size]."""
        return ((num_blocks, block_size),)

    def dtypes(self, model_dtype: torch.dtype) -> tuple[torch.dtype, ...]:
        """int32, whatever the model's."""
        del model_dtype
        return (torch.int32,)


def write_tokens(input_ids: Tensor, cache: Tensor, slot_mapping: Tensor) -> None:
    """Writes the ids of a step, int64 [T], to their slots; a slot of -1 writes nothing."""
    kept = slot_mapping >= 0
    slots, block_size = slot_mapping[kept], cache.shape[1]
    cache[slots // block_size, slots % block_size] = input_ids[: slot_mapping.shape[0]][kept].to(cache.dtype)


def read_tokens(cache: Tensor, metadata: AttentionMetadata, row: int, count: int) -> Tensor:
    """The first `count` ids of a row, int64 [count]."""
    blocks = metadata.block_tables[row, : -(-count // cache.shape[1])].long()
    return cache[blocks].flatten()[:count].long()
