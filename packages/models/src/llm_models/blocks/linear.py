"""Owns linear layers as blocks use them: on one rank, or cut over the ranks of tensor parallelism."""

from llm_kernels import ops
from torch import Tensor

from llm_models.activations import Activation
from llm_models.blocks.step import Setup, Weights


class Linear:
    """Input features to this rank's output features, and what a low-rank adapter adds where there is one.

    An adapter is two further matrices, `NAME_adapter_down.weight` and `NAME_adapter_up.weight`.
    """

    __slots__ = ("_bias", "_down", "_up", "_weight")

    def __init__(self, weights: Weights, name: str) -> None:
        self._weight, self._bias = weights[f"{name}.weight"], weights.get(f"{name}.bias")
        self._down, self._up = weights.get(f"{name}_adapter_down.weight"), None
        if self._down is not None:
            self._up = weights[f"{name}_adapter_up.weight"]

    def __call__(self, x_TI: Tensor) -> Tensor:
        """[T, inputs] to a new tensor [T, outputs]."""
        out_TO: Tensor = ops.linear(x_TI, self._weight, self._bias)
        if self._down is not None and self._up is not None:
            out_TO += ops.linear(ops.linear(x_TI, self._down), self._up)
        return out_TO

    def gated(self, x_TI: Tensor, activation: Activation) -> Tensor:
        """`activation(gate) * up` of the outputs, whose first half is the gate: [T, outputs / 2]."""
        if self._down is None:
            inner_TI: Tensor = ops.gated_linear(x_TI, self._weight, activation, self._bias)
            return inner_TI
        gate_up_TO = self(x_TI)
        inner_TI = x_TI.new_empty((x_TI.shape[0], gate_up_TO.shape[1] // 2))
        ops.gated_activation(inner_TI, gate_up_TO, activation)
        return inner_TI


class SummedLinear:
    """This rank's input features to all output features, summed over the ranks."""

    __slots__ = ("_bias", "_setup", "_weight")

    def __init__(self, weights: Weights, name: str, setup: Setup) -> None:
        self._weight = weights[f"{name}.weight"]
        # The sum over the ranks must hold the bias once.
        self._bias = weights.get(f"{name}.bias") if setup.shard.rank == 0 else None
        self._setup = setup if setup.shard.size > 1 else None

    def __call__(self, x_TI: Tensor) -> Tensor:
        """[T, this rank's inputs] to a new tensor [T, outputs]."""
        out_TO: Tensor = ops.linear(x_TI, self._weight, self._bias)
        return out_TO if self._setup is None else self._setup.sum_ranks(out_TO)
