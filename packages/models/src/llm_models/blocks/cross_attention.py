"""Owns attention of a decoder's tokens over an encoder's states; knows nothing about the encoder."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from llm_kernels import ops
from torch import Tensor

from llm_models.blocks.linear import Linear, SummedLinear
from llm_models.blocks.step import Setup, Step, Weights
from llm_models.caches import CacheSpec, CrossCacheSpec
from llm_models.parameters import Parameter, Rows, Shard, linear, stacked_linear


@dataclass(frozen=True, slots=True, kw_only=True)
class CrossAttention:
    """Attention over keys and values that are made once of the encoder's states and cached.

    Every token sees all of its sequence's states. Canonical names: query, key, value, output.

    Attributes:
        num_heads: Heads of queries, keys and values.
        head_size: Of each.
        scale: Factor of the scores.
        memory_size: Width of the encoder's states.
        bias: Biases of query, value and output.
        key_bias: That of the key; None: as `bias`.
        name: First part of its canonical names.
    """

    num_heads: int
    head_size: int
    scale: float
    memory_size: int
    bias: bool = False
    key_bias: bool | None = None
    name: str = "cross_attention"

    def parameters(self, width: int, shard: Shard) -> Iterator[Parameter]:
        """Input projections by heads, the output projection by its columns."""
        first, end = shard.span(self.num_heads, "num_attention_heads")
        total, span = self.num_heads * self.head_size, (first * self.head_size, end * self.head_size)
        key_bias = self.bias if self.key_bias is None else self.key_bias
        biases = tuple(name for name, has in (("key", key_bias), ("value", self.bias)) if has)
        yield from linear("query", total, width, bias=self.bias, taken_rows=span)
        memory = dict.fromkeys(("key", "value"), Rows(total, span))
        yield from stacked_linear("memory", memory, self.memory_size, biases=biases)
        yield from linear("output", width, total, bias=self.bias, taken_columns=span)

    def caches(self, shard: Shard) -> tuple[CacheSpec, ...]:
        """Keys and values of the encoder's states."""
        heads = shard.part(self.num_heads, "num_attention_heads")
        return (CrossCacheSpec(num_kv_heads=heads, head_size=self.head_size),)

    def build(self, weights: Weights, setup: Setup) -> "RunningCrossAttention":
        """The runtime."""
        running = RunningCrossAttention(self, weights, setup)
        setup.memory_readers.append(running)
        return running


class RunningCrossAttention:
    """The runtime of `CrossAttention`."""

    __slots__ = ("_heads", "_memory", "_output", "_query", "_spec", "cache")

    def __init__(self, spec: CrossAttention, weights: Weights, setup: Setup) -> None:
        self._spec, self.cache = spec, setup.next_cache()
        self._heads = setup.shard.part(spec.num_heads, "num_attention_heads")
        self._query, self._memory = Linear(weights, "query"), Linear(weights, "memory")
        self._output = SummedLinear(weights, "output", setup)

    def write(self, states_SE: Tensor, slots: Tensor, caches: Sequence[tuple[Tensor, ...]]) -> None:
        """Writes keys and values of the encoder's states to their slots of this layer's cache.

        Args:
            states_SE: [S, E].
            slots: int64 [S]; -1 writes nothing.
            caches: The tensors of all caches of the decoder.
        """
        key, value = self._memory(states_SE).chunk(2, dim=1)
        shape = (len(states_SE), self._heads, self._spec.head_size)
        key_cache, value_cache = caches[self.cache]
        ops.write_kv(key.view(shape), value.view(shape), key_cache, value_cache, slots)

    def run(self, x_TE: Tensor, step: Step) -> Tensor:
        """[T, E] to a new tensor [T, E]."""
        query_THD = self._query(x_TE).view(len(x_TE), self._heads, self._spec.head_size)
        key_cache, value_cache = step.caches[self.cache]
        out_THD = torch.empty_like(query_THD)
        ops.paged_attention(
            out_THD,
            query_THD,
            key_cache,
            value_cache,
            step.metadata[self.cache],
            scale=self._spec.scale,
            causal=False,
        )
        return self._output(out_THD.view(len(x_TE), -1))
