"""Owns the two ways to run a model of transformers; knows nothing about files or how the way is chosen."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from llm_kernels.ops import AttentionMetadata
from torch import Tensor, nn

from llm_models.caches import CacheSpec
from llm_models.fallback.attention import PAGED, PagedAttention, switch_implementation
from llm_models.fallback.body import Split
from llm_models.fallback.token_cache import TokenCacheSpec, read_tokens, write_tokens
from llm_models.fallback.verdict import Verdict
from llm_models.model import allocate_caches, bytes_per_block


@dataclass(frozen=True, slots=True, kw_only=True)
class FallbackEmbedding:
    """Facts about a model's vocabulary."""

    vocab_size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FallbackSpec:
    """Facts about a model of transformers; see `ModelFacts`."""

    architecture: str
    hidden_size: int
    max_positions: int
    embedding: FallbackEmbedding


class FallbackModel(nn.Module):
    """A model of transformers behind the interface of `llm_models.Model`.

    Attributes:
        spec: Facts about it.
        verdict: How it is served, and why so.
        caches: What it caches between steps.
        capturable: Whether a CUDA graph may be tried. Where a class's forward looks at the device from the
            host, the capture itself fails.
    """

    capturable = True

    def __init__(self, inner: nn.Module, split: Split, spec: FallbackSpec, verdict: Verdict) -> None:
        super().__init__()
        self.inner = inner
        self.spec = spec
        self.verdict = verdict
        self.caches: tuple[CacheSpec, ...] = ()
        self._split = split
        first = next(inner.parameters())
        self._device, self._dtype = first.device, first.dtype

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self._device

    @property
    def dtype(self) -> torch.dtype:
        """Number format of the weights and of the KV cache."""
        return self._dtype

    @torch.inference_mode()
    def logits(self, hidden_RE: Tensor) -> Tensor:
        """Scores every token of the vocabulary for rows of hidden states; float32 [R, vocab_size]."""
        return self.raw_logits(hidden_RE).float()

    @torch.inference_mode()
    def raw_logits(self, hidden_RE: Tensor) -> Tensor:
        """As `logits`, in the dtype in which the model computes them."""
        if not hidden_RE.shape[0]:
            return hidden_RE.new_zeros(0, self._split.vocab_size)
        return self._split.logits(hidden_RE)

    def kv_bytes_per_block(self, block_size: int) -> int:
        """Bytes of one block over all caches."""
        return bytes_per_block(self.caches, block_size, self.dtype)

    def allocate_caches(self, num_blocks: int, block_size: int) -> list[tuple[Tensor, ...]]:
        """Allocates zeroed tensors for all caches on the model's device."""
        return allocate_caches(self.caches, num_blocks, block_size, self.dtype, self.device)


class PagedModel(FallbackModel):
    """Transformers' module over our paged cache: one pass a step over the packed tokens of all rows.

    Not for two threads at once: a step is known to the modules while it runs.
    """

    def __init__(
        self,
        inner: nn.Module,
        split: Split,
        spec: FallbackSpec,
        verdict: Verdict,
        attention: PagedAttention,
        passes_positions: bool,
    ) -> None:
        super().__init__(inner, split, spec, verdict)
        self._passes_positions = passes_positions
        self.caches = tuple(call.cache_spec() for call in attention.calls)
        self._attention = attention
        switch_implementation(inner, PAGED)

    @torch.inference_mode()
    def forward(
        self, input_ids: Tensor, metadata: Sequence[AttentionMetadata], caches: Sequence[tuple[Tensor, ...]]
    ) -> Tensor:
        """Runs the tokens of one step. See `Model.forward`."""
        self._attention.begin(metadata, caches)
        try:
            positions_1T = metadata[0].positions[None] if self._passes_positions else None
            hidden_1TE = self._split.hidden(input_ids[None], positions_1T)
        finally:
            self._attention.end()
        return hidden_1TE[0]


class RecomputeModel(FallbackModel):
    """Runs the whole sequence of each row again in each step; caches nothing but the ids."""

    capturable = False

    def __init__(self, inner: nn.Module, split: Split, spec: FallbackSpec, verdict: Verdict) -> None:
        super().__init__(inner, split, spec, verdict)
        self.caches = (TokenCacheSpec(),)

    @torch.inference_mode()
    def forward(
        self, input_ids: Tensor, metadata: Sequence[AttentionMetadata], caches: Sequence[tuple[Tensor, ...]]
    ) -> Tensor:
        """Runs every row of one step from its first token on. See `Model.forward`."""
        ((step,), ((cache,),)) = (metadata, caches)
        write_tokens(input_ids, cache, step.slot_mapping)
        hidden_TE = torch.zeros(
            input_ids.shape[0], self.spec.hidden_size, dtype=self.dtype, device=input_ids.device
        )
        starts = step.cu_query_lens.tolist()
        for row, context in enumerate(step.context_lens.tolist()):
            begin, end = starts[row], starts[row + 1]
            if context == 0 or begin == end:
                continue
            ids_1C = read_tokens(cache, step, row, context)[None]
            hidden_TE[begin:end] = self._split.hidden(ids_1C, None)[0, begin - end :]
        return hidden_TE
