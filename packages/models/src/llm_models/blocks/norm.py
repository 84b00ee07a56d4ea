"""Owns normalisation layers: their data, parameters and runtime; knows nothing about where they stand."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import torch
from llm_kernels import ops
from torch import Tensor

from llm_models.blocks.narrow import Narrow
from llm_models.blocks.step import Setup, Weights
from llm_models.parameters import Parameter, tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Norm:
    """Normalisation over the last dimension.

    Attributes:
        eps: Added to the mean square or the variance.
        kind: `rms` (root mean square) or `layer` (mean and variance).
        weight: Whether there is a factor per channel.
        bias: Whether there is a shift per channel (layer norms).
        plus_one: The factor is 1 + w, in float32 (Gemma).
    """

    eps: float
    kind: Literal["rms", "layer"] = "rms"
    weight: bool = True
    bias: bool = False
    plus_one: bool = False

    def parameters(
        self, name: str, width: int, *, rows: tuple[int, int] | None = None
    ) -> Iterator[Parameter]:
        """The parameters of a norm called `name` over `width` channels, of which this rank keeps `rows`."""
        shape = (width,)
        if self.weight:
            yield tensor(
                f"{name}.weight",
                shape,
                kind="norm",
                rows=rows,
                dtype=torch.float32 if self.plus_one else None,
                shift=1.0 if self.plus_one else 0.0,
            )
        if self.bias:
            yield tensor(f"{name}.bias", shape, kind="bias", rows=rows)

    def build(self, weights: Weights, name: str, *, split_over: Setup | None = None) -> "NormOp":
        """The runtime of the norm called `name`.

        Args:
            weights: Holds the norm's parameters.
            name: Their first part.
            split_over: Given where each rank of tensor parallelism holds a share of the channels.
        """
        if split_over is not None and split_over.shard.size > 1:
            return SplitNormOp(self, weights, name, split_over)
        weight = weights.get(f"{name}.weight") if self.weight else None
        bias = weights.get(f"{name}.bias") if self.bias else None
        if self.kind == "layer":
            return LayerNormOp(weight, bias, self.eps)
        return RMSNormOp(weight, self.eps)


class RMSNormOp:
    """Root-mean-square norm."""

    __slots__ = ("_eps", "_weight")

    def __init__(self, weight: Tensor | None, eps: float) -> None:
        self._weight, self._eps = weight, eps

    def apply(self, out: Tensor, x: Tensor) -> None:
        """Writes the normed `x` to `out`, which may be `x`."""
        ops.rms_norm(out, x, self._weight, self._eps)

    def add(self, x: Tensor, residual: Tensor) -> None:
        """In place: adds `x` to `residual`, then `x` becomes the normed sum."""
        ops.fused_add_rms_norm(x, residual, self._weight, self._eps)

    def narrow(self, out: Narrow, x: Tensor | None, residual: Tensor) -> None:
        """Writes the normed sum quantized; first adds `x`, where there is one, to `residual`, in place."""
        if x is None:
            ops.rms_norm_fp8(out.values, out.scales, residual, self._weight, self._eps)
        else:
            ops.rms_norm_fp8(out.values, out.scales, x, self._weight, self._eps, residual_TI=residual)


class LayerNormOp:
    """Mean and variance norm."""

    __slots__ = ("_bias", "_eps", "_weight")

    def __init__(self, weight: Tensor | None, bias: Tensor | None, eps: float) -> None:
        self._weight, self._bias, self._eps = weight, bias, eps

    def apply(self, out: Tensor, x: Tensor) -> None:
        """Writes the normed `x` to `out`, which may be `x`."""
        ops.layer_norm(out, x, self._weight, self._bias, self._eps)

    def add(self, x: Tensor, residual: Tensor) -> None:
        """In place: adds `x` to `residual`, then `x` becomes the normed sum."""
        ops.fused_add_layer_norm(x, residual, self._weight, self._bias, self._eps)


class SplitNormOp:
    """A norm over channels that the ranks of tensor parallelism share out among them."""

    __slots__ = ("_bias", "_eps", "_is_layer_norm", "_setup", "_weight")

    def __init__(self, spec: Norm, weights: Weights, name: str, setup: Setup) -> None:
        self._weight, self._bias = weights.get(f"{name}.weight"), weights.get(f"{name}.bias")
        self._eps, self._is_layer_norm, self._setup = spec.eps, spec.kind == "layer", setup

    def apply(self, out: Tensor, x: Tensor) -> None:
        """Writes the normed `x` to `out`, which may be `x`."""
        values = x.float()
        if self._is_layer_norm:
            values = values - self._mean(values)
        normed = values * torch.rsqrt(self._mean(values.square()) + self._eps)
        if self._weight is not None:
            normed = normed * self._weight
        if self._bias is not None:
            normed = normed + self._bias
        out.copy_(normed)

    def add(self, x: Tensor, residual: Tensor) -> None:
        """In place: adds `x` to `residual`, then `x` becomes the normed sum."""
        residual += x
        self.apply(x, residual)

    def _mean(self, values: Tensor) -> Tensor:
        total = self._setup.sum_ranks(values.mean(dim=-1, keepdim=True))
        return total / self._setup.shard.size


NormOp = RMSNormOp | LayerNormOp | SplitNormOp


def normed(norm: NormOp, x: Tensor) -> Tensor:
    """The normed `x`, in a new tensor."""
    out = torch.empty_like(x)
    norm.apply(out, x)
    return out
