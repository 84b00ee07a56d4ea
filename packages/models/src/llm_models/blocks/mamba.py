"""Owns the selective state space mixer of Mamba 1 (arXiv:2312.00752): data, parameters and runtime."""

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
from llm_models.errors import ConfigError, UnsupportedConfig
from llm_models.parameters import Parameter, Rows, Shard, linear, stacked_linear, tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Mamba:
    """A convolution over the last few tokens, then a scan whose steps depend on the input.

    Canonical names: x, gate, conv, select (from the inner channels to step, B and C), step (up to the inner
    channels), A_log, D, output, step_norm, B_norm, C_norm. With heads, select is one matrix a head.

    Attributes:
        inner_size: Channels inside.
        state_size: State of a channel.
        step_rank: Rank of the step sizes.
        conv_width: Tokens that the convolution sees.
        activation: After the convolution, and of the gate.
        conv_bias: Whether the convolution has a bias.
        bias: Whether the projections in and out have biases.
        select_norm: Norm of step, B and C, each.
        num_heads: Shares of the inner channels, each with a step, B and C of its own.
        name: First part of its canonical names.
    """

    inner_size: int
    state_size: int
    step_rank: int
    conv_width: int
    activation: Activation = "silu"
    conv_bias: bool = True
    bias: bool = False
    select_norm: Norm | None = None
    num_heads: int = 1
    name: str = "mamba"

    def __post_init__(self) -> None:
        if self.activation != "silu":
            raise UnsupportedConfig("hidden_act", f"{self.activation!r} in a state space mixer is not silu")
        if self.inner_size % self.num_heads:
            raise ConfigError("n_mamba_heads", f"{self.num_heads} does not divide {self.inner_size} channels")
        if self.num_heads > 1 and self.select_norm is not None:
            raise UnsupportedConfig("n_mamba_heads", "norms of several heads' step sizes are not supported")

    def parameters(self, width: int, shard: Shard) -> Iterator[Parameter]:
        """Everything is cut by the inner channels."""
        span = shard.span(self.inner_size, "intermediate_size")
        rows = Rows(self.inner_size, span)
        names = ("x", "gate")
        yield from stacked_linear(
            "input", dict.fromkeys(names, rows), width, biases=names if self.bias else ()
        )
        yield tensor("conv.weight", (self.inner_size, self.conv_width), rows=span)
        if self.conv_bias:
            yield tensor("conv.bias", (self.inner_size,), kind="bias", rows=span)
        selected = self.step_rank + 2 * self.state_size
        if self.num_heads == 1:
            yield from linear("select", selected, self.inner_size, taken_columns=span, quantizable=False)
        else:
            heads = shard.span(self.num_heads, "n_mamba_heads")
            shape = (self.num_heads, selected, self.inner_size // self.num_heads)
            yield tensor("select.weight", shape, kind="matrix", rows=heads)
        if self.select_norm is not None:
            for name, size in self._selected.items():
                yield from self.select_norm.parameters(f"{name}_norm", size)
        yield from linear(
            "step", self.inner_size, self.step_rank, bias=True, taken_rows=span, quantizable=False
        )
        yield tensor("A_log", (self.inner_size, self.state_size), dtype=torch.float32, rows=span)
        yield tensor("D", (self.inner_size,), dtype=torch.float32, rows=span)
        yield from linear("output", width, self.inner_size, bias=self.bias, taken_columns=span)

    @property
    def _selected(self) -> dict[str, int]:
        return {"step": self.step_rank, "B": self.state_size, "C": self.state_size}

    def caches(self, shard: Shard) -> tuple[CacheSpec, ...]:
        """The convolution's last inputs, and the scan's state in float32."""
        inner = shard.part(self.inner_size, "intermediate_size")
        shapes = ((inner, self.conv_width - 1), (inner, self.state_size))
        return (StateCacheSpec(state_shapes=shapes, state_dtypes=(None, torch.float32)),)

    def build(self, weights: Weights, setup: Setup) -> "RunningMamba":
        """The runtime."""
        return RunningMamba(self, weights, setup)


class RunningMamba:
    """The runtime of `Mamba`."""

    __slots__ = (
        "_A",
        "_D",
        "_cache",
        "_conv_bias",
        "_conv_weight",
        "_heads",
        "_inner",
        "_input",
        "_norms",
        "_output",
        "_select",
        "_select_HRD",
        "_spec",
        "_step_HDR",
        "_step_bias",
    )

    def __init__(self, spec: Mamba, weights: Weights, setup: Setup) -> None:
        self._spec = spec
        self._inner = setup.shard.part(spec.inner_size, "intermediate_size")
        self._input = Linear(weights, "input")
        self._conv_weight, self._conv_bias = weights["conv.weight"], weights.get("conv.bias")
        self._heads = 1
        self._select: SummedLinear | None = None
        self._select_HRD = weights["select.weight"]
        self._step_HDR = weights["step.weight"]
        if spec.num_heads == 1:
            self._select = SummedLinear(weights, "select", setup)
        else:
            self._heads = len(self._select_HRD)
            self._step_HDR = self._step_HDR.view(self._heads, -1, spec.step_rank)
        norm = spec.select_norm
        self._norms = (
            () if norm is None else tuple(norm.build(weights, f"{name}_norm") for name in ("step", "B", "C"))
        )
        # The scan adds the bias of the step sizes, in float32.
        self._step_bias = weights["step.bias"]
        self._A, self._D = -torch.exp(weights["A_log"]), weights["D"]
        self._output = SummedLinear(weights, "output", setup)
        self._cache = setup.next_cache()

    def run(self, x_TE: Tensor, step: Step) -> Tensor:
        """[T, E] to a new tensor [T, E]."""
        metadata = step.metadata[self._cache]
        conv_cache, state_cache = step.caches[self._cache]
        block_size = metadata.block_size
        x_TI, gate_TI = self._input(x_TE).split_with_sizes((self._inner, self._inner), dim=1)
        conv_TI = torch.empty(x_TI.shape, dtype=x_TI.dtype, device=x_TI.device)
        ops.causal_conv1d(
            conv_TI,
            x_TI,
            self._conv_weight,
            self._conv_bias,
            conv_cache,
            metadata,
            block_size=block_size,
            activation="silu",
        )
        step_TI, B, C = self._selected(conv_TI)
        out_TI = torch.empty_like(conv_TI)
        ops.selective_scan(
            out_TI,
            conv_TI,
            step_TI,
            self._A,
            B,
            C,
            self._D,
            state_cache,
            metadata,
            block_size=block_size,
            dt_bias=self._step_bias,
        )
        out_TI *= torch.nn.functional.silu(gate_TI)
        return self._output(out_TI)

    def _selected(self, conv_TI: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Step sizes [T, I], B and C [T, S], or [T, heads, S]."""
        spec = self._spec
        sizes = (spec.step_rank, spec.state_size, spec.state_size)
        if self._select is None:
            x_HTD = conv_TI.view(len(conv_TI), self._heads, -1).transpose(0, 1)
            chosen_HTR = torch.bmm(x_HTD, self._select_HRD.transpose(1, 2))
            step_HTR, B_HTS, C_HTS = chosen_HTR.split_with_sizes(sizes, dim=2)
            step_HTD = torch.bmm(step_HTR, self._step_HDR.transpose(1, 2))
            step_TI = step_HTD.transpose(0, 1).reshape(conv_TI.shape)
            return step_TI, B_HTS.transpose(0, 1).contiguous(), C_HTS.transpose(0, 1).contiguous()
        chosen = self._select(conv_TI).split_with_sizes(sizes, dim=1)
        for part, norm in zip(chosen, self._norms, strict=False):  # Without norms there are none.
            norm.apply(part, part)
        step_TR, B_TS, C_TS = chosen
        return ops.linear(step_TR, self._step_HDR), B_TS, C_TS
