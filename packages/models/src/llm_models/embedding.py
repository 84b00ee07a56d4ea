"""Owns the way from token ids to the first hidden states: parameters and runtime of `Embedding`."""

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from llm_kernels import ops
from torch import Tensor

from llm_models.blocks.step import Setup, Weights
from llm_models.parameters import Parameter, Shard, linear, tensor
from llm_models.spec import Embedding, LearnedPositions, SinusoidalPositions

_SLOWEST = 10000.0


def embedding_parameters(embedding: Embedding, width: int, shard: Shard) -> Iterator[Parameter]:
    """Those of the way in, for hidden states of `width`."""
    size = embedding.size or width
    vocabulary = vocabulary_span(embedding, shard)
    yield from linear("embedding", embedding.vocab_size, size, taken_rows=vocabulary, quantizable=False)
    if isinstance(embedding.positions, LearnedPositions):
        positions = embedding.positions
        columns = width if positions.after_projection else size
        yield tensor("positions.weight", (positions.count, columns), kind="matrix")
    if embedding.token_types:
        yield tensor("token_types.weight", (embedding.token_types, size), kind="matrix")
    if embedding.norm is not None:
        yield from embedding.norm.parameters("embedding_norm", size)
    if size != width:
        bias = embedding.projection_bias
        yield from linear("embedding_projection", width, size, bias=bias, quantizable=False)


def vocabulary_span(embedding: Embedding, shard: Shard) -> tuple[int, int] | None:
    """First and end of this rank's share of the vocabulary; None where it does not divide: all of it."""
    size = embedding.vocab_size
    return None if shard.size == 1 or size % shard.size else shard.span(size, "vocab_size")


def sinusoidal_table(positions: SinusoidalPositions, width: int, setup: Setup) -> Tensor:
    """Sines, then cosines, of the positions' rows: [count, width] (arXiv:1706.03762)."""
    half = width // 2
    last = half - 1 if positions.reaches_slowest else half
    exponents = torch.arange(half, dtype=torch.float64) / last
    angles = torch.arange(positions.count, dtype=torch.float64)[:, None] * _SLOWEST**-exponents
    return torch.cat((angles.sin(), angles.cos()), dim=1).to(setup.device, setup.dtype)


class RunningEmbedding:
    """The runtime of `Embedding`."""

    __slots__ = (
        "_late",
        "_norm",
        "_offset",
        "_positions",
        "_projection",
        "_projection_bias",
        "_scale",
        "_setup",
        "_share",
        "_types",
        "_weight",
    )

    def __init__(self, embedding: Embedding, weights: Weights, setup: Setup) -> None:
        self._weight, self._setup = weights["embedding.weight"], setup
        self._share = vocabulary_span(embedding, setup.shard)
        # Rounded, as the reference implementations keep the factor in the model's number format.
        self._scale = torch.tensor(embedding.scale, dtype=setup.dtype).item()
        positions = embedding.positions
        self._positions = weights.get("positions.weight")
        if isinstance(positions, SinusoidalPositions):
            self._positions = sinusoidal_table(positions, self._weight.shape[1], setup)
        self._late = isinstance(positions, LearnedPositions) and positions.after_projection
        self._offset = 0 if positions is None else positions.offset
        self._norm = None if embedding.norm is None else embedding.norm.build(weights, "embedding_norm")
        self._types = weights.get("token_types.weight")
        self._projection = weights.get("embedding_projection.weight")
        self._projection_bias = weights.get("embedding_projection.bias")

    def run(self, input_ids: Tensor, positions: Tensor, token_types: Tensor | None) -> Tensor:
        """Ids [T] to a new tensor [T, E]."""
        x_TE = (
            F.embedding(input_ids, self._weight)
            if self._share is None
            else self._look_up(input_ids, self._share)
        )
        if self._scale != 1.0:
            x_TE *= self._scale
        if self._positions is not None and not self._late:
            x_TE += F.embedding(positions + self._offset, self._positions)
        if self._types is not None:
            x_TE += self._types[0] if token_types is None else F.embedding(token_types, self._types)
        if self._norm is not None:
            self._norm.apply(x_TE, x_TE)
        if self._projection is not None:
            x_TE = ops.linear(x_TE, self._projection, self._projection_bias)
        if self._positions is not None and self._late:
            x_TE += F.embedding(positions + self._offset, self._positions)
        return x_TE

    def _look_up(self, input_ids: Tensor, share: tuple[int, int]) -> Tensor:
        """Rows of a table that the ranks share out: the others' rows are zeros, then all are summed."""
        first, end = share
        is_own = (input_ids >= first) & (input_ids < end)
        rows = F.embedding((input_ids - first).where(is_own, 0), self._weight)
        return self._setup.sum_ranks(rows.masked_fill_(~is_own[:, None], 0))
