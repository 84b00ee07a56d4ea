"""Owns linear layers as blocks use them: on one rank, or cut over the ranks of tensor parallelism."""

from llm_kernels import ops
from torch import Tensor

from llm_models.activations import Activation
from llm_models.blocks.step import Setup, Weights
from llm_models.parameters import scale_names


class Matrix:
    """A weight with its bias: in the model's number format, or e4m3 with scales beside it.

    An e4m3 `NAME.weight` has `NAME.weight_scale`, and where its inputs have static scales (one for each layer
    that it holds) `NAME.input_scale`, of which the largest serves all.
    """

    __slots__ = ("_bias", "_input_scale", "_scale", "_weight")

    def __init__(self, weights: Weights, name: str, *, has_bias: bool = True) -> None:
        self._weight = weights[f"{name}.weight"]
        self._bias = weights.get(f"{name}.bias") if has_bias else None
        scale, input_scale = scale_names(f"{name}.weight")
        self._scale, inputs = weights.get(scale), weights.get(input_scale)
        self._input_scale = None if inputs is None else inputs.amax()

    def __call__(self, x_TI: Tensor) -> Tensor:
        """[T, inputs] to a new tensor [T, outputs]."""
        if self._scale is None:
            return ops.linear(x_TI, self._weight, self._bias)
        return ops.fp8_linear(x_TI, self._weight, self._scale, self._bias, input_scale=self._input_scale)

    def gated(self, x_TI: Tensor, activation: Activation) -> Tensor:
        """`activation(gate) * up` of the outputs, whose first half is the gate: [T, outputs / 2]."""
        if self._scale is None:
            return ops.gated_linear(x_TI, self._weight, activation, self._bias)
        return _gated(self(x_TI), activation)


class Linear:
    """Input features to this rank's output features, and what a low-rank adapter adds where there is one.

    An adapter is two further matrices, `NAME_adapter_down.weight` and `NAME_adapter_up.weight`.
    """

    __slots__ = ("_down", "_matrix", "_up")

    def __init__(self, weights: Weights, name: str) -> None:
        self._matrix = Matrix(weights, name)
        self._down, self._up = weights.get(f"{name}_adapter_down.weight"), None
        if self._down is not None:
            self._up = weights[f"{name}_adapter_up.weight"]

    def __call__(self, x_TI: Tensor) -> Tensor:
        """[T, inputs] to a new tensor [T, outputs]."""
        out_TO = self._matrix(x_TI)
        if self._down is not None and self._up is not None:
            out_TO += ops.linear(ops.linear(x_TI, self._down), self._up)
        return out_TO

    def gated(self, x_TI: Tensor, activation: Activation) -> Tensor:
        """`activation(gate) * up` of the outputs, whose first half is the gate: [T, outputs / 2]."""
        if self._down is None:
            return self._matrix.gated(x_TI, activation)
        return _gated(self(x_TI), activation)


class SummedLinear:
    """This rank's input features to all output features, summed over the ranks."""

    __slots__ = ("_matrix", "_setup")

    def __init__(self, weights: Weights, name: str, setup: Setup) -> None:
        # The sum over the ranks must hold the bias once.
        self._matrix = Matrix(weights, name, has_bias=setup.shard.rank == 0)
        self._setup = setup if setup.shard.size > 1 else None

    def __call__(self, x_TI: Tensor) -> Tensor:
        """[T, this rank's inputs] to a new tensor [T, outputs]."""
        out_TO = self._matrix(x_TI)
        return out_TO if self._setup is None else self._setup.sum_ranks(out_TO)


def _gated(gate_up_TO: Tensor, activation: Activation) -> Tensor:
    inner_TI = gate_up_TO.new_empty((gate_up_TO.shape[0], gate_up_TO.shape[1] // 2))
    ops.gated_activation(inner_TI, gate_up_TO, activation)
    return inner_TI
