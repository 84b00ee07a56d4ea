"""Owns biases of attention scores by the distance of key and query, learned for ranges of distances (T5)."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from llm_models.blocks.step import Setup, Weights
from llm_models.parameters import Parameter, tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class RelativeBias:
    """A bias a head for each range of distances; the ranges grow with the distance (arXiv:1910.10683).

    Attributes:
        num_buckets: Number of ranges, of both directions together where keys lie on both sides.
        max_distance: From here on all distances are in the last range.
    """

    num_buckets: int
    max_distance: int

    def parameters(self, num_heads: int, heads: tuple[int, int]) -> Iterator[Parameter]:
        """The table [heads, ranges]."""
        shape = (num_heads, self.num_buckets)
        yield tensor("relative_bias.weight", shape, dtype=torch.float32, rows=heads)

    def build(self, weights: Weights, setup: Setup, *, causal: bool) -> "RunningRelativeBias":
        """The runtime; with `causal` no key lies after its query."""
        offsets = torch.arange(-self.max_distance, self.max_distance + 1)
        buckets = self._buckets(offsets, causal=causal).to(setup.device)
        return RunningRelativeBias(weights["relative_bias.weight"][:, buckets].contiguous())

    def _buckets(self, offsets: Tensor, *, causal: bool) -> Tensor:
        """The range of each offset of a key from its query."""
        count = self.num_buckets
        first = torch.zeros_like(offsets)
        distances = (-offsets).clamp(min=0)
        if not causal:
            count //= 2
            first = (offsets > 0) * count
            distances = offsets.abs()
        num_exact = count // 2
        # In float32, as in the reference: some distances lie on the edge of a range.
        growth = torch.log(distances.float() / num_exact) / math.log(self.max_distance / num_exact)
        wide = num_exact + (growth * (count - num_exact)).clamp(min=0).long()
        return first + torch.where(distances < num_exact, distances, wide.clamp(max=count - 1))


class RunningRelativeBias:
    """The runtime of `RelativeBias`.

    Args:
        by_offset: float32 [H, 2 * L + 1]; of keys L before to L after their query.
    """

    __slots__ = ("_by_offset", "_longest", "by_distance")

    def __init__(self, by_offset: Tensor) -> None:
        self._by_offset, self._longest = by_offset, by_offset.shape[1] // 2
        self.by_distance = by_offset[:, : self._longest + 1].flip(1).contiguous()
        """float32 [H, L + 1], of keys at a distance before their query."""

    def __call__(self, num_queries: int, num_keys: int) -> Tensor:
        """float32 [H, queries, keys] of a whole sequence, whose last tokens are the queries."""
        device = self._by_offset.device
        queries = torch.arange(num_keys - num_queries, num_keys, device=device)
        offsets = torch.arange(num_keys, device=device) - queries[:, None]
        return self._by_offset[:, offsets.clamp(-self._longest, self._longest) + self._longest]
