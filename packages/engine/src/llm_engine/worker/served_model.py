"""What the worker asks of a model; knows nothing of how one is built."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from llm_kernels.ops import AttentionMetadata
from llm_models.caches import CacheSpec
from torch import Tensor


class ServedModel(Protocol):
    """A decoder whose cached state the engine keeps; `llm_models.Decoder` is one."""

    @property
    def caches(self) -> tuple[CacheSpec, ...]:
        """What it caches, in layer order."""

    @property
    def device(self) -> torch.device:
        """Where its weights are."""

    @property
    def dtype(self) -> torch.dtype:
        """Number format of its weights and hidden states."""

    def __call__(
        self,
        input_ids: Tensor,
        metadata: Sequence[AttentionMetadata],
        caches: Sequence[tuple[Tensor, ...]],
        /,
    ) -> Tensor:
        """Runs the tokens of a step; one metadata and one tuple of tensors a cache.

        Args:
            input_ids: int64 [T].
            metadata: The rows, with the block tables of each cache's group.
            caches: As `CacheSpec.shapes` says; dimension 0 may be strided.

        Returns:
            Hidden states [T, hidden size].
        """

    def raw_logits(self, hidden_RE: Tensor, /) -> Tensor:
        """Scores of the vocabulary, [R, V], in the model's dtype."""
