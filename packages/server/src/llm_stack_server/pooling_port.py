"""What the server needs of an engine whose model gives vectors or scores: the shape of `AsyncPoolingLLM`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeAlias, runtime_checkable

from llm_engine.pooling_outputs import ClassificationOutput, EmbeddingOutput, RewardOutput, ScoreOutput
from llm_engine.worker.pooling_info import PoolingInfo, ShortVectors

Text: TypeAlias = str | Sequence[int]


@runtime_checkable
class PoolingEngine(Protocol):
    """What such an engine can do beyond `Engine`. Errors are those of `llm_engine.errors`."""

    @property
    def info(self) -> PoolingInfo:
        """What the model is like."""
        ...

    @property
    def short_vectors(self) -> ShortVectors:
        """Which lengths below the whole one the model was trained for."""
        ...

    @property
    def max_model_len(self) -> int:
        """Longest text in tokens."""
        ...

    async def embed(
        self,
        texts: Sequence[Text],
        *,
        dimensions: int | None = None,
        normalize: bool | None = None,
        truncate: int | None = None,
        per_token: bool = False,
    ) -> list[EmbeddingOutput]:
        """A vector of each text, or of each of its tokens. Cancelling takes back what has not run."""
        ...

    async def score(
        self, pairs: Sequence[tuple[Text, Text]], *, truncate: int | None = None
    ) -> list[ScoreOutput]:
        """How well the second text of each pair goes with the first."""
        ...

    async def classify(
        self, texts: Sequence[Text], *, truncate: int | None = None
    ) -> list[ClassificationOutput]:
        """Probabilities of the classes of each text, or of its tokens."""
        ...

    async def reward(self, texts: Sequence[Text], *, truncate: int | None = None) -> list[RewardOutput]:
        """Raw scores of each text, or of its tokens."""
        ...


def routes_of(info: PoolingInfo) -> tuple[str, ...]:
    """The routes that a model answers."""
    if not info.labels:
        return ("/v1/embeddings", "/v1/score", "/v1/rerank", "/pooling")
    if len(info.labels) == 1 and not info.per_token:
        return ("/v1/score", "/v1/rerank", "/classify", "/pooling")
    return ("/classify", "/pooling")
