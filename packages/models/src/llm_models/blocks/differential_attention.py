"""Owns differential attention: the difference of two heads' attention over the same values.

Knows nothing about other mixers. One usual attention computes both halves of the heads, over values
of two KV heads each; what is done with the halves is here.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from llm_kernels import ops
from torch import Tensor

from llm_models.blocks.linear import Linear
from llm_models.blocks.norm import Norm
from llm_models.blocks.step import Setup, Step, Weights
from llm_models.caches import CacheSpec, KVCacheSpec
from llm_models.errors import ConfigError, ShardingError
from llm_models.parameters import Parameter, Part, Shard, linear, tensor
from llm_models.rope import Rope

_LAMBDAS = ("lambda_q1", "lambda_k1", "lambda_q2", "lambda_k2")


@dataclass(frozen=True, slots=True, kw_only=True)
class DifferentialAttention:
    """Head i of the first half minus a trained share of head i of the second half.

    Canonical names: query, key, value, output, and four vectors lambda_*.

    Attributes:
        num_heads: Query heads, an even number.
        num_kv_heads: Key and value heads, an even divisor of `num_heads`.
        head_size: Of queries, keys and values. Every head reads the values of two KV heads.
        scale: Factor of the scores.
        rope: How positions turn queries and keys.
        norm: Of each difference.
        initial_lambda: The share before training.
        bias: Biases of all projections.
        name: First part of its canonical names.

    Raises:
        ConfigError: A number of heads is odd or does not divide.
    """

    num_heads: int
    num_kv_heads: int
    head_size: int
    scale: float
    rope: Rope
    norm: Norm
    initial_lambda: float
    bias: bool = False
    name: str = "attention"

    def __post_init__(self) -> None:
        if self.num_kv_heads % 2 or self.num_heads % self.num_kv_heads:
            reason = f"{self.num_kv_heads} is no even divisor of num_attention_heads {self.num_heads}"
            raise ConfigError("num_key_value_heads", reason)

    def parameters(self, width: int, shard: Shard) -> Iterator[Parameter]:
        """All projections in one, the value's rows twice: each is read beside two keys.

        Raises:
            ShardingError: There are several ranks: the two halves would part.
        """
        if shard.size > 1:
            raise ShardingError("num_attention_heads", "differential attention is not cut over ranks")
        for leaf in ("weight", "bias") if self.bias else ("weight",):
            parts = tuple(self._parts(leaf, width))
            rows = sum(part.taken[0] for part in parts)
            shape = (rows, width) if leaf == "weight" else (rows,)
            yield Parameter(name=f"input.{leaf}", shape=shape, parts=parts)
        for name in _LAMBDAS:
            yield tensor(name, (self.head_size,), dtype=torch.float32)
        yield from self.norm.parameters("norm", 2 * self.head_size)
        yield from linear("output", width, self.num_heads * self.head_size, bias=self.bias)

    def _parts(self, leaf: str, width: int) -> Iterator[Part]:
        size, half = self.head_size, self.num_kv_heads // 2

        def part(name: str, heads: int, rows: tuple[int, int] | None = None) -> Part:
            shape = (heads * size, width) if leaf == "weight" else (heads * size,)
            return Part(name=f"{name}.{leaf}", shape=shape, rows=rows)

        yield part("query", self.num_heads)
        yield part("key", self.num_kv_heads)
        for head in range(self.num_kv_heads):
            for source in (head % half, half + head % half):
                yield part("value", self.num_kv_heads, (source * size, (source + 1) * size))

    def caches(self, shard: Shard) -> tuple[CacheSpec, ...]:
        """Keys, and values of twice their size."""
        size = self.head_size
        return (KVCacheSpec(num_kv_heads=self.num_kv_heads, head_size=size, value_size=2 * size),)

    def build(self, weights: Weights, setup: Setup) -> "RunningDifferentialAttention":
        """The runtime."""
        return RunningDifferentialAttention(self, weights, setup)


class RunningDifferentialAttention:
    """The runtime of `DifferentialAttention`."""

    __slots__ = ("_cache", "_cos_sin", "_factor", "_input", "_norm", "_output", "_sizes", "_spec")

    def __init__(self, spec: DifferentialAttention, weights: Weights, setup: Setup) -> None:
        self._spec, size = spec, spec.head_size
        self._input, self._output = Linear(weights, "input"), Linear(weights, "output")
        self._norm = spec.norm.build(weights, "norm")
        q1, k1, q2, k2 = (weights[name] for name in _LAMBDAS)
        self._factor = float((q1 @ k1).exp() - (q2 @ k2).exp()) + spec.initial_lambda
        self._sizes = (spec.num_heads * size, spec.num_kv_heads * size, spec.num_kv_heads * 2 * size)
        self._cos_sin = setup.rope_table(spec.rope)
        self._cache = setup.next_cache()

    def run(self, x_TE: Tensor, step: Step) -> Tensor:
        """[T, E] to a new tensor [T, E]."""
        spec, tokens = self._spec, x_TE.shape[0]
        query, key, value = self._input(x_TE).split_with_sizes(self._sizes, dim=1)
        query_THD = query.view(tokens, spec.num_heads, spec.head_size)
        key_TKD = key.view(tokens, spec.num_kv_heads, spec.head_size)
        value_TKV = value.view(tokens, spec.num_kv_heads, 2 * spec.head_size)
        ops.rotary_embedding(query_THD, key_TKD, step.positions, self._cos_sin)
        metadata, (key_cache, value_cache) = step.metadata[self._cache], step.caches[self._cache]
        ops.write_kv(key_TKD, value_TKV, key_cache, value_cache, metadata.slot_mapping)
        shape = (tokens, spec.num_heads, 2 * spec.head_size)
        out_THV = torch.empty(shape, dtype=x_TE.dtype, device=x_TE.device)
        ops.paged_attention(out_THV, query_THD, key_cache, value_cache, metadata, scale=spec.scale)
        first, second = out_THV.chunk(2, dim=1)
        difference = first - self._factor * second
        self._norm.apply(difference, difference)
        difference *= 1 - spec.initial_lambda
        return self._output(difference.flatten(1))
