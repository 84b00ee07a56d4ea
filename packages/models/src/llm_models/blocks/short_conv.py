"""Owns the gated short convolution of LFM2: data, parameters and runtime."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from llm_kernels import ops
from torch import Tensor

from llm_models.blocks.linear import Linear, SummedLinear
from llm_models.blocks.step import Setup, Step, Weights
from llm_models.caches import CacheSpec, StateCacheSpec
from llm_models.parameters import Parameter, Rows, Shard, linear, stacked_linear, tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class ShortConv:
    """`output(after * conv(before * x))`, with both gates and x projections of the input.

    Canonical names: before, after, x, conv, output.

    Attributes:
        inner_size: Channels of the convolution.
        conv_width: Tokens that it sees.
        bias: Whether projections and convolution have biases.
        name: First part of its canonical names.
    """

    inner_size: int
    conv_width: int
    bias: bool = False
    name: str = "conv_mixer"

    def parameters(self, width: int, shard: Shard) -> Iterator[Parameter]:
        """Everything is cut by channels."""
        span = shard.span(self.inner_size, "hidden_size")
        names = ("before", "after", "x")
        rows = dict.fromkeys(names, Rows(self.inner_size, span))
        yield from stacked_linear("input", rows, width, biases=names if self.bias else ())
        yield tensor("conv.weight", (self.inner_size, self.conv_width), rows=span)
        if self.bias:
            yield tensor("conv.bias", (self.inner_size,), kind="bias", rows=span)
        yield from linear("output", width, self.inner_size, bias=self.bias, taken_columns=span)

    def caches(self, shard: Shard) -> tuple[CacheSpec, ...]:
        """The convolution's last inputs."""
        shape = (shard.part(self.inner_size, "hidden_size"), self.conv_width - 1)
        return (StateCacheSpec(state_shapes=(shape,), state_dtypes=(None,)),)

    def build(self, weights: Weights, setup: Setup) -> "RunningShortConv":
        """The runtime."""
        return RunningShortConv(self, weights, setup)


class RunningShortConv:
    """The runtime of `ShortConv`."""

    __slots__ = ("_bias", "_cache", "_inner", "_input", "_output", "_weight")

    def __init__(self, spec: ShortConv, weights: Weights, setup: Setup) -> None:
        self._inner = setup.shard.part(spec.inner_size, "hidden_size")
        self._input = Linear(weights, "input")
        self._weight, self._bias = weights["conv.weight"], weights.get("conv.bias")
        self._output = SummedLinear(weights, "output", setup)
        self._cache = setup.next_cache()

    def run(self, x_TE: Tensor, step: Step) -> Tensor:
        """[T, E] to a new tensor [T, E]."""
        metadata, (state_cache,) = step.metadata[self._cache], step.caches[self._cache]
        before_TI, after_TI, x_TI = self._input(x_TE).split_with_sizes((self._inner,) * 3, dim=1)
        gated_TI = before_TI * x_TI
        out_TI = torch.empty_like(gated_TI)
        ops.causal_conv1d(
            out_TI,
            gated_TI,
            self._weight,
            self._bias,
            state_cache,
            metadata,
            block_size=metadata.block_size,
        )
        out_TI *= after_TI
        return self._output(out_TI)
