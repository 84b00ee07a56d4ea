"""Owns linear attention with a constant decay a head (Lightning Attention, arXiv:2401.04658)."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from llm_kernels import ops
from torch import Tensor

from llm_models.activations import Activation
from llm_models.blocks.linear import Linear, SummedLinear
from llm_models.blocks.norm import Norm
from llm_models.blocks.step import Setup, Step, Weights
from llm_models.caches import CacheSpec, StateCacheSpec
from llm_models.parameters import Parameter, Rows, Shard, linear, stacked_linear


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearAttention:
    """Attention without softmax over a state that fades; a norm over all heads, then a sigmoid gate.

    Canonical names: query, key, value, gate, output_norm, output.

    Attributes:
        head_size: Of queries, keys and values.
        slopes: One a head: with each token the state fades by `exp(-slope)`.
        activation: Of queries, keys and values.
        norm: Of all heads' outputs together.
        name: First part of its canonical names.
    """

    head_size: int
    slopes: tuple[float, ...]
    activation: Activation
    norm: Norm
    name: str = "linear_attention"

    @property
    def num_heads(self) -> int:
        """Heads."""
        return len(self.slopes)

    def parameters(self, width: int, shard: Shard) -> Iterator[Parameter]:
        """Everything is cut by heads."""
        inner, span = self.num_heads * self.head_size, self._span(shard)
        rows = dict.fromkeys(("query", "key", "value", "gate"), Rows(inner, span))
        yield from stacked_linear("input", rows, width)
        yield from self.norm.parameters("output_norm", inner, rows=span)
        yield from linear("output", width, inner, taken_columns=span)

    def caches(self, shard: Shard) -> tuple[CacheSpec, ...]:
        """The state in float32."""
        heads = shard.part(self.num_heads, "num_attention_heads")
        shape = (heads, self.head_size, self.head_size)
        return (StateCacheSpec(state_shapes=(shape,), state_dtypes=(torch.float32,)),)

    def build(self, weights: Weights, setup: Setup) -> "RunningLinearAttention":
        """The runtime."""
        return RunningLinearAttention(self, weights, setup)

    def _span(self, shard: Shard) -> tuple[int, int]:
        first, end = shard.span(self.num_heads, "num_attention_heads")
        return first * self.head_size, end * self.head_size


class RunningLinearAttention:
    """The runtime of `LinearAttention`."""

    __slots__ = ("_activation", "_cache", "_head_size", "_inner", "_input", "_norm", "_output", "_slopes")

    def __init__(self, spec: LinearAttention, weights: Weights, setup: Setup) -> None:
        self._activation, self._head_size = spec.activation, spec.head_size
        first, end = setup.shard.span(spec.num_heads, "num_attention_heads")
        self._inner = (end - first) * spec.head_size
        self._slopes = torch.tensor(spec.slopes[first:end], dtype=torch.float32, device=setup.device)
        self._input = Linear(weights, "input")
        self._norm = spec.norm.build(weights, "output_norm", split_over=setup)
        self._output = SummedLinear(weights, "output", setup)
        self._cache = setup.next_cache()

    def run(self, x_TE: Tensor, step: Step) -> Tensor:
        """[T, E] to a new tensor [T, E]."""
        metadata, (state_cache,) = step.metadata[self._cache], step.caches[self._cache]
        mixed_TC, gate_TI = self._input(x_TE).split_with_sizes((3 * self._inner, self._inner), dim=1)
        active_TC = torch.empty(mixed_TC.shape, dtype=x_TE.dtype, device=x_TE.device)
        ops.activation(active_TC, mixed_TC.contiguous(), self._activation)
        query, key, value = active_TC.split_with_sizes((self._inner,) * 3, dim=1)
        shape = (len(x_TE), -1, self._head_size)
        value_THV = value.view(shape)
        out_THV = torch.empty(value_THV.shape, dtype=x_TE.dtype, device=x_TE.device)
        ops.linear_attention(
            out_THV,
            query.view(shape),
            key.view(shape),
            value_THV,
            self._slopes,
            state_cache,
            metadata,
            block_size=metadata.block_size,
        )
        out_TI = out_THV.flatten(1)
        self._norm.apply(out_TI, out_TI)
        out_TI *= gate_TI.sigmoid()
        return self._output(out_TI)
