"""Owns what every model offers to who runs it, native or not; knows nothing about how one is built."""

from collections.abc import Iterator, Sequence
from typing import Protocol

import torch
from llm_kernels.ops import AttentionMetadata
from torch import Tensor, nn

from llm_models.caches import CacheSpec


class VocabularyFacts(Protocol):
    """What is asked of a model's embedding."""

    @property
    def vocab_size(self) -> int:
        """Number of scores a token gets; ids lie below it."""
        ...


class ModelFacts(Protocol):
    """What is asked of a model's description: `DecoderSpec` for native models."""

    @property
    def architecture(self) -> str:
        """Name of the class, as the config gives it."""
        ...

    @property
    def hidden_size(self) -> int:
        """Width of the rows that `forward` returns."""
        ...

    @property
    def max_positions(self) -> int:
        """Positions lie below it."""
        ...

    @property
    def embedding(self) -> VocabularyFacts:
        """Facts about the vocabulary."""
        ...


class Model(Protocol):
    """A causal language model with its weights on one device.

    Attributes:
        caches: What it caches between steps, in the order in which `forward` takes the tensors. Whoever
            allocates them may put specs of another number format in their place.
    """

    caches: tuple[CacheSpec, ...]

    @property
    def spec(self) -> ModelFacts:
        """Its description."""
        ...

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        ...

    @property
    def dtype(self) -> torch.dtype:
        """Number format of the weights and of the hidden states."""
        ...

    @property
    def capturable(self) -> bool:
        """Whether a step does the same device work for the same shapes: a CUDA graph can replay it."""
        ...

    def forward(
        self, input_ids: Tensor, metadata: Sequence[AttentionMetadata], caches: Sequence[tuple[Tensor, ...]]
    ) -> Tensor:
        """Runs the tokens of one step; returns hidden states [T, hidden_size].

        Args:
            input_ids: int64 [T].
            metadata: One for each of `caches`; those of one KV group may be the same object.
            caches: The tensors of each of `caches`.
        """
        ...

    def logits(self, hidden_RE: Tensor) -> Tensor:
        """Scores of every token of the vocabulary for rows of hidden states, float32 [R, vocab_size]."""
        ...

    def raw_logits(self, hidden_RE: Tensor) -> Tensor:
        """As `logits`, in the dtype in which the model computes them."""
        ...

    def parameters(self) -> Iterator[nn.Parameter]:
        """Every weight once."""
        ...

    def kv_bytes_per_block(self, block_size: int) -> int:
        """Bytes of one block over all caches."""
        ...

    def allocate_caches(self, num_blocks: int, block_size: int) -> list[tuple[Tensor, ...]]:
        """Allocates zeroed tensors for all caches on the model's device."""
        ...


def bytes_per_block(caches: Sequence[CacheSpec], block_size: int, dtype: torch.dtype) -> int:
    """Bytes of one block over all `caches`, for a model of `dtype`."""
    return sum(cache.bytes_per_block(block_size, dtype) for cache in caches)


def allocate_caches(
    caches: Sequence[CacheSpec], num_blocks: int, block_size: int, dtype: torch.dtype, device: torch.device
) -> list[tuple[Tensor, ...]]:
    """Allocates zeroed tensors for `caches`, each on its own: [blocks, ...]."""
    return [
        tuple(
            torch.zeros(shape, dtype=of_cache, device=device)
            for shape, of_cache in zip(cache.shapes(num_blocks, block_size), cache.dtypes(dtype), strict=True)
        )
        for cache in caches
    ]
