"""Owns DeBERTa's attention, whose scores add content to position and position to content (arXiv:2006.03654).

Over whole texts only. The vectors of relative positions do not depend on the text: their projections are made
once, when the block is built.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import torch
from llm_kernels import ops
from torch import Tensor

from llm_models.blocks.linear import Linear, SummedLinear
from llm_models.blocks.norm import Norm
from llm_models.blocks.step import Setup, Step, Weights
from llm_models.caches import CacheSpec
from llm_models.parameters import Parameter, Rows, Shard, linear, stacked_linear, tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class DisentangledAttention:
    """Attention to both sides, with vectors of relative positions.

    Canonical names: query, key, value, output, relative (the vectors), relative_norm, position_key and
    position_query (their projections).

    Attributes:
        num_heads: Heads.
        head_size: Of each.
        farthest: Distances from here on count as one.
        buckets: Distances above half of it share vectors, the more the farther; None: one a distance.
        content_to_position: Queries meet projected positions of the keys.
        position_to_content: Keys meet projected positions of the queries.
        shares_projections: Positions are projected as content is.
        relative_norm: Norm of the vectors of positions.
        key_bias: Whether keys have a bias; queries and values do.
        name: First part of its canonical names.
    """

    num_heads: int
    head_size: int
    farthest: int
    buckets: int | None
    content_to_position: bool
    position_to_content: bool
    shares_projections: bool
    relative_norm: Norm | None
    key_bias: bool
    name: str = "attention"

    @property
    def span(self) -> int:
        """Vectors of positions to each side."""
        return self.buckets or self.farthest

    @property
    def scale(self) -> float:
        """Factor of every part of the scores."""
        parts = 1 + self.content_to_position + self.position_to_content
        return float((self.head_size * parts) ** -0.5)

    def parameters(self, width: int, shard: Shard) -> Iterator[Parameter]:
        """Projections by heads, the output projection by its columns, the vectors whole."""
        first, end = shard.span(self.num_heads, "num_attention_heads")
        own = (first * self.head_size, end * self.head_size)
        total = self.num_heads * self.head_size
        rows = dict.fromkeys(("query", "key", "value"), Rows(total, own))
        biases = ("query", "key", "value") if self.key_bias else ("query", "value")
        is_linear = not self.shares_projections
        yield from stacked_linear("input", rows, width, biases=biases, quantizable=is_linear)
        yield tensor("relative.weight", (2 * self.span, width), kind="matrix")
        if self.relative_norm is not None:
            yield from self.relative_norm.parameters("relative_norm", width)
        if not self.shares_projections:
            if self.content_to_position:
                yield from linear("position_key", total, width, bias=self.key_bias, taken_rows=own)
            if self.position_to_content:
                yield from linear("position_query", total, width, bias=True, taken_rows=own)
        yield from linear("output", width, total, bias=True, taken_columns=own)

    def caches(self, shard: Shard) -> tuple[CacheSpec, ...]:
        """None."""
        return ()

    def build(self, weights: Weights, setup: Setup) -> "RunningDisentangledAttention":
        """The runtime."""
        return RunningDisentangledAttention(self, weights, setup)

    def bucket(self, distances: Tensor) -> Tensor:
        """Rows of the vectors for distances (query less key), int64."""
        found = distances
        if self.buckets is not None:
            middle = self.buckets // 2
            far = distances.abs().clamp(min=middle - 1).float()
            # In float32, as in the reference: some distances lie on the edge of a bucket.
            growth = torch.log(far / middle) / torch.log(torch.tensor((self.farthest - 1) / middle))
            wide = (torch.ceil(growth * (middle - 1)) + middle) * torch.sign(distances)
            found = torch.where(distances.abs() <= middle, distances, wide.long())
        return (found + self.span).clamp(0, 2 * self.span - 1)


class RunningDisentangledAttention:
    """The runtime of `DisentangledAttention`."""

    __slots__ = ("_heads", "_input", "_output", "_position_key_HPD", "_position_query_HPD", "_spec")

    def __init__(self, spec: DisentangledAttention, weights: Weights, setup: Setup) -> None:
        self._spec = spec
        self._heads = setup.shard.part(spec.num_heads, "num_attention_heads")
        self._input, self._output = Linear(weights, "input"), SummedLinear(weights, "output", setup)
        relative_PE = weights["relative.weight"]
        if spec.relative_norm is not None:
            normed_PE = torch.empty_like(relative_PE)
            spec.relative_norm.build(weights, "relative_norm").apply(normed_PE, relative_PE)
            relative_PE = normed_PE
        self._position_key_HPD: Tensor | None = None
        self._position_query_HPD: Tensor | None = None
        if spec.content_to_position:
            self._position_key_HPD = self._project(relative_PE, weights, "position_key", part=1)
        if spec.position_to_content:
            self._position_query_HPD = self._project(relative_PE, weights, "position_query", part=0)

    def run(self, x_TE: Tensor, step: Step) -> Tensor:
        """[T, E] to a new tensor [T, E].

        Raises:
            ValueError: The pass is not over whole texts.
        """
        if step.packed is None:
            raise ValueError("this attention runs over whole texts only")
        size, tokens = self._spec.head_size, x_TE.shape[0]
        qkv_THD = self._input(x_TE).view(tokens, 3 * self._heads, size)
        out_TO = torch.empty((tokens, self._heads * size), dtype=x_TE.dtype, device=x_TE.device)
        ends = step.packed.cu_lens.tolist()
        rows_NN = self._rows(step.packed.max_len, x_TE.device)
        for first, end in pairwise(ends):
            length = end - first
            query_HND, key_HND, value_HND = torch.split(qkv_THD[first:end].transpose(0, 1), self._heads)
            scores_HNN = self._scores(query_HND, key_HND, rows_NN[:length, :length])
            weights_HNN = torch.softmax(scores_HNN.float(), dim=-1).to(value_HND.dtype)
            out_TO[first:end] = (weights_HNN @ value_HND).transpose(0, 1).reshape(length, -1)
        return self._output(out_TO)

    def _scores(self, query_HND: Tensor, key_HND: Tensor, rows_NN: Tensor) -> Tensor:
        query_HND = query_HND * self._spec.scale
        scores_HNN = query_HND @ key_HND.transpose(1, 2)
        rows_HNN = rows_NN.expand_as(scores_HNN)
        if self._position_key_HPD is not None:
            by_row = query_HND @ self._position_key_HPD.transpose(1, 2)
            scores_HNN += by_row.gather(2, rows_HNN)
        if self._position_query_HPD is not None:
            by_row = (key_HND * self._spec.scale) @ self._position_query_HPD.transpose(1, 2)
            scores_HNN += by_row.gather(2, rows_HNN.transpose(1, 2)).transpose(1, 2)
        return scores_HNN

    def _rows(self, length: int, device: torch.device) -> Tensor:
        """int64 [queries, keys]: which vector stands for the distance."""
        positions = torch.arange(length)
        return self._spec.bucket(positions[:, None] - positions).to(device)

    def _project(self, relative_PE: Tensor, weights: Weights, name: str, *, part: int) -> Tensor:
        """Vectors [heads, positions, head size], by a projection of their own or by that of query or key."""
        if self._spec.shares_projections:
            share = self._heads * self._spec.head_size
            bias = weights.get("input.bias")
            own = slice(part * share, (part + 1) * share)
            out = ops.linear(relative_PE, weights["input.weight"][own], None if bias is None else bias[own])
        else:
            out = Linear(weights, name)(relative_PE)
        projected: Tensor = out.view(len(relative_PE), self._heads, -1).transpose(0, 1).contiguous()
        return projected
