"""Owns linear layers as blocks use them: on one rank, or cut over the ranks of tensor parallelism."""

from llm_kernels import ops
from torch import Tensor

from llm_models.blocks.step import Setup, Weights


class Linear:
    """Input features to this rank's output features."""

    __slots__ = ("_bias", "_weight")

    def __init__(self, weights: Weights, name: str) -> None:
        self._weight, self._bias = weights[f"{name}.weight"], weights.get(f"{name}.bias")

    def __call__(self, x_TI: Tensor) -> Tensor:
        """[T, inputs] to a new tensor [T, outputs]."""
        out_TO: Tensor = ops.linear(x_TI, self._weight, self._bias)
        return out_TO


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
