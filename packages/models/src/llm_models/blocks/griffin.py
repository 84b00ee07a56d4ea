"""Owns the recurrent mixer of Griffin (arXiv:2402.19427): data, parameters and runtime."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from llm_kernels import ops
from torch import Tensor

from llm_models.activations import Activation
from llm_models.blocks.linear import Linear, SummedLinear
from llm_models.blocks.step import Setup, Step, Weights
from llm_models.caches import CacheSpec, StateCacheSpec
from llm_models.errors import ConfigError
from llm_models.parameters import Parameter, Rows, Shard, linear, stacked_linear, tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Griffin:
    """`output(activation(gate) * lru(conv(x)))`; the recurrent unit's own gates are linear head by head.

    Canonical names: x, gate, conv, input_gate, recurrent_gate, decay, output.

    Attributes:
        inner_size: Channels of the convolution and the recurrent unit.
        num_heads: Blocks of channels, between which the unit's gates do not mix.
        conv_width: Tokens that the convolution sees.
        activation: Of the gate.
        name: First part of its canonical names.
    """

    inner_size: int
    num_heads: int
    conv_width: int
    activation: Activation
    name: str = "griffin"

    def __post_init__(self) -> None:
        if self.inner_size % self.num_heads:
            raise ConfigError("lru_width", f"is no multiple of num_attention_heads {self.num_heads}")

    def parameters(self, width: int, shard: Shard) -> Iterator[Parameter]:
        """Everything is cut by heads."""
        heads, size = shard.span(self.num_heads, "num_attention_heads"), self.inner_size // self.num_heads
        span = (heads[0] * size, heads[1] * size)
        names = ("gate", "x")
        rows = dict.fromkeys(names, Rows(self.inner_size, span))
        yield from stacked_linear("input", rows, width, biases=names)
        yield tensor("conv.weight", (self.inner_size, self.conv_width), rows=span)
        yield tensor("conv.bias", (self.inner_size,), kind="bias", rows=span)
        for gate in ("input_gate", "recurrent_gate"):
            yield tensor(f"{gate}.weight", (self.num_heads, size, size), kind="matrix", rows=heads)
            yield tensor(f"{gate}.bias", (self.num_heads, size), kind="bias", rows=heads)
        yield tensor("decay", (self.inner_size,), dtype=torch.float32, rows=span)
        yield from linear("output", width, self.inner_size, bias=True, taken_columns=span)

    def caches(self, shard: Shard) -> tuple[CacheSpec, ...]:
        """The convolution's last inputs, and the unit's state in float32."""
        inner = shard.part(self.num_heads, "num_attention_heads") * (self.inner_size // self.num_heads)
        shapes = ((inner, self.conv_width - 1), (inner,))
        return (StateCacheSpec(state_shapes=shapes, state_dtypes=(None, torch.float32)),)

    def build(self, weights: Weights, setup: Setup) -> "RunningGriffin":
        """The runtime."""
        return RunningGriffin(self, weights, setup)


class RunningGriffin:
    """The runtime of `Griffin`."""

    __slots__ = (
        "_activation",
        "_cache",
        "_conv_bias",
        "_conv_weight",
        "_decay",
        "_inner",
        "_input",
        "_input_gate",
        "_output",
        "_recurrent_gate",
    )

    def __init__(self, spec: Griffin, weights: Weights, setup: Setup) -> None:
        self._activation = spec.activation
        self._input = Linear(weights, "input")
        self._conv_weight, self._conv_bias = weights["conv.weight"], weights["conv.bias"]
        self._inner = len(self._conv_bias)
        self._input_gate = _HeadwiseLinear(weights, "input_gate")
        self._recurrent_gate = _HeadwiseLinear(weights, "recurrent_gate")
        self._decay = weights["decay"]
        self._output = SummedLinear(weights, "output", setup)
        self._cache = setup.next_cache()

    def run(self, x_TE: Tensor, step: Step) -> Tensor:
        """[T, E] to a new tensor [T, E]."""
        metadata, (conv_cache, state_cache) = step.metadata[self._cache], step.caches[self._cache]
        gate_TI, x_TI = self._input(x_TE).split_with_sizes((self._inner, self._inner), dim=1)
        conv_TI = torch.empty(x_TI.shape, dtype=x_TI.dtype, device=x_TI.device)
        ops.causal_conv1d(
            conv_TI,
            x_TI,
            self._conv_weight,
            self._conv_bias,
            conv_cache,
            metadata,
            block_size=metadata.block_size,
        )
        out_TI = torch.empty_like(conv_TI)
        ops.rg_lru(
            out_TI,
            conv_TI,
            self._input_gate(conv_TI),
            self._recurrent_gate(conv_TI),
            self._decay,
            state_cache,
            metadata,
            block_size=metadata.block_size,
        )
        active_TI = torch.empty_like(out_TI)
        ops.activation(active_TI, gate_TI.contiguous(), self._activation)
        out_TI *= active_TI
        return self._output(out_TI)


class _HeadwiseLinear:
    """A linear layer a head, from its channels to themselves."""

    __slots__ = ("_bias_H1D", "_weight_HDD")

    def __init__(self, weights: Weights, name: str) -> None:
        self._weight_HDD, self._bias_H1D = weights[f"{name}.weight"], weights[f"{name}.bias"][:, None]

    def __call__(self, x_TI: Tensor) -> Tensor:
        heads = len(self._weight_HDD)
        x_HTD = x_TI.view(len(x_TI), heads, -1).transpose(0, 1)
        out_HTD = torch.baddbmm(self._bias_H1D, x_HTD, self._weight_HDD)
        return out_HTD.transpose(0, 1).reshape(x_TI.shape)
