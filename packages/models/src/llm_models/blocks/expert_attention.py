"""Owns attention whose query and output projections are chosen a token (mixture of attention heads).

The chosen experts share keys and values; each contributes one query head a KV head (arXiv:2210.05144).
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from llm_kernels import ops
from torch import Tensor

from llm_models.blocks.linear import Linear
from llm_models.blocks.step import Setup, Step, Weights
from llm_models.caches import CacheSpec, KVCacheSpec
from llm_models.parameters import Parameter, Part, Rows, Shard, linear, stacked_linear, tensor
from llm_models.rope import Rope


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertAttention:
    """A sum, weighted by a softmax over the chosen experts' scores, of their attention.

    Canonical names: router, experts.N.query, experts.N.output, key, value, sum.bias.

    Attributes:
        num_experts: Experts to choose from.
        top_k: Experts a token.
        num_kv_heads: Key and value heads, and query heads of an expert.
        head_size: Of all heads.
        scale: Factor of the scores.
        rope: How positions turn queries and keys.
        name: First part of its canonical names.
    """

    num_experts: int
    top_k: int
    num_kv_heads: int
    head_size: int
    scale: float
    rope: Rope
    name: str = "attention"

    def parameters(self, width: int, shard: Shard) -> Iterator[Parameter]:
        """Every projection is cut by KV heads; the router and the bias of the sum are whole on each rank."""
        heads = shard.span(self.num_kv_heads, "num_key_value_heads")
        inner, span = (
            self.num_kv_heads * self.head_size,
            (heads[0] * self.head_size, heads[1] * self.head_size),
        )
        yield from linear("router", self.num_experts, width, quantizable=False)
        ids = range(self.num_experts)
        yield Parameter(
            name="experts.query.weight",
            shape=(self.num_experts, span[1] - span[0], width),
            lead=2,
            parts=tuple(Part(name=f"experts.{e}.query.weight", shape=(inner, width), rows=span) for e in ids),
        )
        yield Parameter(
            name="experts.output.weight",
            shape=(self.num_experts, width, span[1] - span[0]),
            lead=2,
            parts=tuple(
                Part(name=f"experts.{e}.output.weight", shape=(width, inner), columns=span) for e in ids
            ),
        )
        yield from stacked_linear("input", {"key": Rows(inner, span), "value": Rows(inner, span)}, width)
        yield tensor("sum.bias", (width,), kind="bias")

    def caches(self, shard: Shard) -> tuple[CacheSpec, ...]:
        """Keys and values."""
        heads = shard.part(self.num_kv_heads, "num_key_value_heads")
        return (KVCacheSpec(num_kv_heads=heads, head_size=self.head_size, value_size=self.head_size),)

    def build(self, weights: Weights, setup: Setup) -> "RunningExpertAttention":
        """The runtime."""
        return RunningExpertAttention(self, weights, setup)


class RunningExpertAttention:
    """The runtime of `ExpertAttention`."""

    __slots__ = (
        "_bias",
        "_cache",
        "_cos_sin",
        "_heads",
        "_input",
        "_output",
        "_query",
        "_router",
        "_setup",
        "_spec",
    )

    def __init__(self, spec: ExpertAttention, weights: Weights, setup: Setup) -> None:
        self._spec, self._setup = spec, setup
        self._heads = setup.shard.part(spec.num_kv_heads, "num_key_value_heads")
        self._router, self._input = Linear(weights, "router"), Linear(weights, "input")
        self._query, self._output = weights["experts.query.weight"], weights["experts.output.weight"]
        self._bias = weights["sum.bias"]
        self._cos_sin = setup.rope_table(spec.rope)
        self._cache = setup.next_cache()

    def run(self, x_TE: Tensor, step: Step) -> Tensor:
        """[T, E] to a new tensor [T, E]."""
        spec, tokens, heads, size = self._spec, len(x_TE), self._heads, self._spec.head_size
        weights_TK, ids_TK = ops.route_experts(self._router(x_TE), top_k=spec.top_k, scoring="softmax_after")
        ids = ids_TK.flatten()
        query_PI = x_TE.new_empty(tokens * spec.top_k, heads * size)
        ops.grouped_linear(query_PI, x_TE.repeat_interleave(spec.top_k, dim=0), self._query, ids)
        # The kernels want the query heads of a KV head side by side.
        by_head = query_PI.view(tokens, spec.top_k, heads, size).transpose(1, 2)
        query_THD = by_head.reshape(tokens, heads * spec.top_k, size)
        key_TKD, value_TKD = self._input(x_TE).view(tokens, 2, heads, size).unbind(1)
        ops.rotary_embedding(
            query_THD, key_TKD, step.positions, self._cos_sin, interleaved=spec.rope.interleaved
        )
        out_THD = torch.empty_like(query_THD)
        self._attend(out_THD, query_THD, key_TKD, value_TKD, step)
        by_expert = out_THD.view(tokens, heads, spec.top_k, size).transpose(1, 2)
        out_PE = x_TE.new_empty(tokens * spec.top_k, x_TE.shape[1])
        ops.grouped_linear(out_PE, by_expert.reshape(tokens * spec.top_k, heads * size), self._output, ids)
        out_TKE = out_PE.view(tokens, spec.top_k, -1) * weights_TK.to(x_TE.dtype)[:, :, None]
        return self._setup.sum_ranks(out_TKE.sum(dim=1)) + self._bias

    def _attend(
        self, out_THD: Tensor, query_THD: Tensor, key_TKD: Tensor, value_TKD: Tensor, step: Step
    ) -> None:
        scale = self._spec.scale
        if step.packed is not None:
            lens, longest = step.packed.cu_lens, step.packed.max_len
            ops.varlen_attention(
                out_THD, query_THD, key_TKD, value_TKD, lens, lens, longest, longest, scale=scale, causal=True
            )
            return
        metadata, (key_cache, value_cache) = step.metadata[self._cache], step.caches[self._cache]
        ops.write_kv(key_TKD, value_TKD, key_cache, value_cache, metadata.slot_mapping)
        ops.paged_attention(out_THD, query_THD, key_cache, value_cache, metadata, scale=scale)
