"""Owns what a model caches between steps, as plain data; knows nothing about blocks' owners or layers.

A decoder lists its caches in layer order. The engine groups them, gives each its tensors, and passes one
`AttentionMetadata` for each with a step.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import TypeAlias

import torch


@dataclass(frozen=True, slots=True, kw_only=True)
class KVCacheSpec:
    """Keys and values of one attention layer.

    Attributes:
        num_kv_heads: KV heads held on this rank.
        head_size: Size of a key.
        value_size: Size of a value.
        window: Latest tokens a token sees, itself included; None: all.
        chunk: Tokens of a chunk, where a token sees only its own chunk; None: no chunks.
        dtype: Number format of the cache; None: that of the model.
    """

    num_kv_heads: int
    head_size: int
    value_size: int
    window: int | None = None
    chunk: int | None = None
    dtype: torch.dtype | None = None

    def shapes(self, num_blocks: int, block_size: int) -> tuple[tuple[int, ...], ...]:
        """Key cache [blocks, block size, KV heads, head size] and value cache."""
        lead = (num_blocks, block_size, self.num_kv_heads)
        return (*lead, self.head_size), (*lead, self.value_size)

    def dtypes(self, model_dtype: torch.dtype) -> tuple[torch.dtype, ...]:
        """Of the tensors of `shapes`."""
        dtype = self.dtype or model_dtype
        return dtype, dtype

    def bytes_per_block(self, block_size: int, model_dtype: torch.dtype) -> int:
        """Bytes of one block."""
        return _bytes(self, block_size, model_dtype)


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentCacheSpec:
    """The latents of one layer of multi-head latent attention: the compressed pair, then the rope key."""

    size: int

    def shapes(self, num_blocks: int, block_size: int) -> tuple[tuple[int, ...], ...]:
        """One cache [blocks, block size, size]."""
        return ((num_blocks, block_size, self.size),)

    def dtypes(self, model_dtype: torch.dtype) -> tuple[torch.dtype, ...]:
        """Of the tensors of `shapes`."""
        return (model_dtype,)

    def bytes_per_block(self, block_size: int, model_dtype: torch.dtype) -> int:
        """Bytes of one block."""
        return _bytes(self, block_size, model_dtype)


@dataclass(frozen=True, slots=True, kw_only=True)
class StateCacheSpec:
    """The states of one recurrent layer: a block holds one of each, whatever its number of tokens.

    Attributes:
        state_shapes: Shape of each state.
        state_dtypes: Number format of each; None: that of the model.
    """

    state_shapes: tuple[tuple[int, ...], ...]
    state_dtypes: tuple[torch.dtype | None, ...]

    def shapes(self, num_blocks: int, block_size: int) -> tuple[tuple[int, ...], ...]:
        """One cache [blocks, *state shape] a state."""
        return tuple((num_blocks, *shape) for shape in self.state_shapes)

    def dtypes(self, model_dtype: torch.dtype) -> tuple[torch.dtype, ...]:
        """Of the tensors of `shapes`."""
        return tuple(dtype or model_dtype for dtype in self.state_dtypes)

    def bytes_per_block(self, block_size: int, model_dtype: torch.dtype) -> int:
        """Bytes of one block."""
        return _bytes(self, block_size, model_dtype)


@dataclass(frozen=True, slots=True, kw_only=True)
class CrossCacheSpec:
    """Keys and values that a layer computes once from an encoder's output."""

    num_kv_heads: int
    head_size: int

    def shapes(self, num_blocks: int, block_size: int) -> tuple[tuple[int, ...], ...]:
        """Key cache and value cache [blocks, block size, KV heads, head size]."""
        shape = (num_blocks, block_size, self.num_kv_heads, self.head_size)
        return shape, shape

    def dtypes(self, model_dtype: torch.dtype) -> tuple[torch.dtype, ...]:
        """Of the tensors of `shapes`."""
        return model_dtype, model_dtype

    def bytes_per_block(self, block_size: int, model_dtype: torch.dtype) -> int:
        """Bytes of one block."""
        return _bytes(self, block_size, model_dtype)


CacheSpec: TypeAlias = KVCacheSpec | LatentCacheSpec | StateCacheSpec | CrossCacheSpec


def stored_as(caches: Sequence[CacheSpec], dtype: torch.dtype) -> tuple[CacheSpec, ...]:
    """The same caches with keys and values of decoder attention in another number format."""
    return tuple(replace(spec, dtype=dtype) if isinstance(spec, KVCacheSpec) else spec for spec in caches)


def _bytes(spec: CacheSpec, block_size: int, model_dtype: torch.dtype) -> int:
    pairs = zip(spec.shapes(1, block_size), spec.dtypes(model_dtype), strict=True)
    return sum(prod(shape) * dtype.itemsize for shape, dtype in pairs)
