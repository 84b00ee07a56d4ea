"""Owns feed-forward blocks, gated or plain: data, parameters and runtime."""

from collections.abc import Iterator
from dataclasses import dataclass
from statistics import NormalDist

import torch
import torch.nn.functional as F
from llm_kernels import ops
from torch import Tensor

from llm_models.activations import Activation
from llm_models.blocks.linear import Inputs, Linear, SummedLinear
from llm_models.blocks.narrow import Narrow
from llm_models.blocks.norm import Norm
from llm_models.blocks.step import Setup, Step, Weights
from llm_models.caches import CacheSpec
from llm_models.parameters import Parameter, Rows, Shard, linear, stacked_linear, tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class MLP:
    """`down(activation(gate(x)) * up(x))`, or `down(activation(up(x)))` without a gate.

    Canonical names: gate, up, down, inner_norm, and with xIELU activation.alpha_p, .alpha_n and .beta.

    Attributes:
        intermediate_size: Width inside.
        activation: Of the gate, or of the only input projection.
        gated: Whether there is a gate.
        bias: Whether the input projections have biases.
        down_bias: Whether the output projection has one; None: as `bias`.
        inner_norm: Norm before the output projection.
        sparsity: Share of the gate's inputs to the activation that become 0: what lies above the quantile of
            a normal distribution is kept, less it.
        gate_scale: Factor of the gate's input to the activation.
        scale: Factor of the output.
        name: First part of its canonical names.
    """

    intermediate_size: int
    activation: Activation = "silu"
    gated: bool = True
    bias: bool = False
    down_bias: bool | None = None
    inner_norm: Norm | None = None
    sparsity: float = 0.0
    gate_scale: float = 1.0
    scale: float = 1.0
    name: str = "mlp"

    def parameters(self, width: int, shard: Shard) -> Iterator[Parameter]:
        """Input projections by their rows, the output projection by its columns."""
        span = shard.span(self.intermediate_size, "intermediate_size")
        names = ("gate", "up") if self.gated else ("up",)
        rows = dict.fromkeys(names, Rows(self.intermediate_size, span))
        yield from stacked_linear("input", rows, width, biases=names if self.bias else ())
        if self.inner_norm is not None:
            yield from self.inner_norm.parameters("inner_norm", self.intermediate_size, rows=span)
        if self.activation == "xielu":
            yield tensor("activation.alpha_p", (1,), dtype=torch.float32)
            yield tensor("activation.alpha_n", (1,), dtype=torch.float32)
            yield tensor("activation.beta", (1,), dtype=torch.float32, default=0.5)
        bias = self.bias if self.down_bias is None else self.down_bias
        yield from linear("down", width, self.intermediate_size, bias=bias, taken_columns=span)

    def caches(self, shard: Shard) -> tuple[CacheSpec, ...]:
        """None."""
        return ()

    def build(self, weights: Weights, setup: Setup) -> "RunningMLP":
        """The runtime."""
        return RunningMLP(self, weights, setup)


class RunningMLP:
    """The runtime of `MLP`."""

    __slots__ = (
        "_activation",
        "_activation_parameters",
        "_down",
        "_gate_scale",
        "_gated",
        "_inner",
        "_inner_norm",
        "_input",
        "_is_gate_alone",
        "_scale",
        "_setup",
        "_sparse_above",
    )

    def __init__(self, spec: MLP, weights: Weights, setup: Setup) -> None:
        self._activation, self._gated = spec.activation, spec.gated
        self._inner = setup.shard.part(spec.intermediate_size, "intermediate_size")
        self._input = Linear(weights, "input")
        self._down = SummedLinear(weights, "down", setup)
        norm = spec.inner_norm
        self._inner_norm = None if norm is None else norm.build(weights, "inner_norm", split_over=setup)
        self._gate_scale, self._scale = spec.gate_scale, spec.scale
        self._is_gate_alone = spec.gated and spec.gate_scale == 1.0 and not spec.sparsity and norm is None
        # In standard deviations.
        self._sparse_above = NormalDist().inv_cdf(spec.sparsity) if spec.sparsity else None
        self._setup = setup
        self._activation_parameters = _xielu_parameters(weights) if spec.activation == "xielu" else None

    def room(self, tokens: int, dtype: torch.dtype) -> Narrow | None:
        """See `Matrix.room`."""
        return self._input.room(tokens, dtype)

    def run(self, x_TE: Inputs, step: Step) -> Tensor:
        """[T, E] to a new tensor [T, E]."""
        room = self._down.room(x_TE.shape[0], x_TE.dtype) if self._is_gate_alone else None
        if room is not None:
            ops.gated_activation_fp8(room.values, room.scales, self._input(x_TE), self._activation)
            out_TE = self._down(room)
        else:
            inner_TI = self._activated(x_TE)
            if self._inner_norm is not None:
                self._inner_norm.apply(inner_TI, inner_TI)
            out_TE = self._down(inner_TI)
        if self._scale != 1.0:
            out_TE *= self._scale
        return out_TE

    def _activated(self, x_TE: Inputs) -> Tensor:
        """[T, E] to what the output projection (or the norm before it) takes, [T, I]."""
        if self._gated and self._gate_scale == 1.0 and self._sparse_above is None:
            return self._input.gated(x_TE, self._activation)
        input_TI = self._input(x_TE)
        if self._gate_scale != 1.0:
            input_TI[:, : self._inner] *= self._gate_scale
        if self._sparse_above is not None:
            self._keep_largest(input_TI[:, : self._inner], self._sparse_above)
        inner_TI = torch.empty((x_TE.shape[0], self._inner), dtype=x_TE.dtype, device=x_TE.device)
        if self._gated:
            ops.gated_activation(inner_TI, input_TI, self._activation)
        else:
            ops.activation(inner_TI, input_TI, self._activation, parameters=self._activation_parameters)
        return inner_TI

    def _keep_largest(self, gate_TI: Tensor, deviations: float) -> None:
        """Cuts off, in place, what lies below the mean (over all ranks) and so many standard deviations."""
        values, ranks = gate_TI.float(), self._setup.shard.size
        mean = self._setup.sum_ranks(values.mean(dim=-1, keepdim=True)) / ranks
        variance = self._setup.sum_ranks((values - mean).square().mean(dim=-1, keepdim=True)) / ranks
        gate_TI.copy_(F.relu(values - (mean + deviations * variance.sqrt())))


def _xielu_parameters(weights: Weights) -> Tensor:
    """Alphas of the positive and the negative side as applied, and beta."""
    alpha_p, alpha_n = weights["activation.alpha_p"], weights["activation.alpha_n"]
    beta = weights["activation.beta"]
    return torch.cat((F.softplus(alpha_p), beta + F.softplus(alpha_n), beta))
