"""Owns linear layers as blocks use them: on one rank, or cut over the ranks of tensor parallelism."""

from typing import TypeAlias

import torch
from llm_kernels import ops
from torch import Tensor

from llm_models.activations import Activation
from llm_models.blocks.narrow import Narrow, empty_narrow
from llm_models.blocks.step import Setup, Weights
from llm_models.parameters import scale_names

Inputs: TypeAlias = Tensor | Narrow
"""What a linear layer reads: [T, inputs] in the model's number format, or quantized by the op before."""


class Matrix:
    """A weight with its bias: in the model's number format, or e4m3 with scales beside it.

    An e4m3 `NAME.weight` has `NAME.weight_scale`, and where its inputs have static scales (one for each layer
    that it holds) `NAME.input_scale`, of which the largest serves all.
    """

    __slots__ = ("_bias", "_input_scale", "_quantizes_from", "_scale", "_weight")

    def __init__(self, weights: Weights, name: str, *, has_bias: bool = True) -> None:
        self._weight = weights[f"{name}.weight"]
        self._bias = weights.get(f"{name}.bias") if has_bias else None
        scale, input_scale = scale_names(f"{name}.weight")
        self._scale, inputs = weights.get(scale), weights.get(input_scale)
        self._input_scale = None if inputs is None else inputs.amax()
        self._quantizes_from: dict[torch.dtype, int | None] = {}

    def __call__(self, x_TI: Inputs) -> Tensor:
        """[T, inputs] to a new tensor [T, outputs]."""
        if isinstance(x_TI, Narrow):
            return self._product(x_TI)
        if self._scale is None:
            return ops.linear(x_TI, self._weight, self._bias)
        return ops.fp8_linear(x_TI, self._weight, self._scale, self._bias, input_scale=self._input_scale)

    def gated(self, x_TI: Inputs, activation: Activation) -> Tensor:
        """`activation(gate) * up` of the outputs, whose first half is the gate: [T, outputs / 2]."""
        if isinstance(x_TI, Narrow) or self._input_scale is not None:
            return gate(self(x_TI), activation)
        return ops.gated_linear(x_TI, self._weight, activation, self._bias, weight_scale=self._scale)

    def room(self, tokens: int, dtype: torch.dtype) -> Narrow | None:
        """Where the op before may write so many tokens' inputs quantized; None where that is not wanted.

        It is wanted where the product would quantize them itself, with scales found anew.
        """
        if self._scale is None or self._input_scale is not None:
            return None
        if dtype not in self._quantizes_from:
            self._quantizes_from[dtype] = ops.fp8_quantizes_from(self._weight, self._scale, dtype)
        least = self._quantizes_from[dtype]
        if least is None or tokens < least:
            return None
        return empty_narrow(tokens, self._weight.shape[1], self._scale, dtype)

    def _product(self, x_TI: Narrow) -> Tensor:
        if self._scale is None:
            raise ValueError("quantized activations for a weight that is not")
        values_TI, scales_TG = x_TI.values, x_TI.scales
        return ops.fp8_product(values_TI, scales_TG, self._weight, self._scale, self._bias, dtype=x_TI.dtype)


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

    def __call__(self, x_TI: Inputs) -> Tensor:
        """[T, inputs] to a new tensor [T, outputs]."""
        out_TO = self._matrix(x_TI)
        if self._down is not None and self._up is not None and not isinstance(x_TI, Narrow):
            out_TO += ops.linear(ops.linear(x_TI, self._down), self._up)
        return out_TO

    def gated(self, x_TI: Inputs, activation: Activation) -> Tensor:
        """`activation(gate) * up` of the outputs, whose first half is the gate: [T, outputs / 2]."""
        if self._down is None:
            return self._matrix.gated(x_TI, activation)
        return gate(self(x_TI), activation)

    def room(self, tokens: int, dtype: torch.dtype) -> Narrow | None:
        """See `Matrix.room`. An adapter reads what is not quantized."""
        return self._matrix.room(tokens, dtype) if self._down is None else None


class SummedLinear:
    """This rank's input features to all output features, summed over the ranks."""

    __slots__ = ("_matrix", "_setup")

    def __init__(self, weights: Weights, name: str, setup: Setup) -> None:
        # The sum over the ranks must hold the bias once.
        self._matrix = Matrix(weights, name, has_bias=setup.shard.rank == 0)
        self._setup = setup if setup.shard.size > 1 else None

    def __call__(self, x_TI: Inputs) -> Tensor:
        """[T, this rank's inputs] to a new tensor [T, outputs]."""
        out_TO = self._matrix(x_TI)
        return out_TO if self._setup is None else self._setup.sum_ranks(out_TO)

    def room(self, tokens: int, dtype: torch.dtype) -> Narrow | None:
        """See `Matrix.room`."""
        return self._matrix.room(tokens, dtype)


def gate(gate_up_TF: Tensor, activation: Activation) -> Tensor:
    """`activation(gate) * up` of [T, 2 * I], the gate's half first: a new tensor [T, I]."""
    inner_TI = gate_up_TF.new_empty((gate_up_TF.shape[0], gate_up_TF.shape[1] // 2))
    ops.gated_activation(inner_TI, gate_up_TF, activation)
    return inner_TI
