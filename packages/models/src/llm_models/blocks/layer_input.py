"""Owns inputs of single layers: vectors that a layer mixes in besides the stream, and scales of whole layers.

Knows nothing about mixers. The first layer computes the vectors of all layers, from the token's id and its
embedding, and leaves them in the step.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from llm_kernels import ops
from torch import Tensor

from llm_models.activations import Activation
from llm_models.blocks.layer import LayerSpec, RunningLayer, Stream
from llm_models.blocks.linear import Linear
from llm_models.blocks.norm import Norm
from llm_models.blocks.step import Setup, Step, Weights
from llm_models.caches import CacheSpec
from llm_models.parameters import Parameter, Shard, below, linear, tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerInput:
    """A block: `projection(activation(gate(x)) * vector of this layer)`.

    Canonical names: gate, projection.

    Attributes:
        layer: Number of the layer.
        size: Of the vector.
        activation: Of the gate.
        name: First part of its canonical names.
    """

    layer: int
    size: int
    activation: Activation
    name: str = "layer_input"

    def parameters(self, width: int, shard: Shard) -> Iterator[Parameter]:
        """Both projections, whole on every rank: they are small."""
        yield from linear("gate", self.size, width)
        yield from linear("projection", width, self.size)

    def caches(self, shard: Shard) -> tuple[CacheSpec, ...]:
        """None."""
        return ()

    def build(self, weights: Weights, setup: Setup) -> "RunningLayerInput":
        """The runtime."""
        return RunningLayerInput(self, weights)


class RunningLayerInput:
    """The runtime of `LayerInput`."""

    __slots__ = ("_activation", "_gate", "_layer", "_projection")

    def __init__(self, spec: LayerInput, weights: Weights) -> None:
        self._layer, self._activation = spec.layer, spec.activation
        self._gate, self._projection = Linear(weights, "gate"), Linear(weights, "projection")

    def run(self, x_TE: Tensor, step: Step) -> Tensor:
        """[T, E] to a new tensor [T, E]."""
        assert step.layer_inputs is not None
        gate_TS = self._gate(x_TE)
        ops.activation(gate_TS, gate_TS, self._activation)
        gate_TS *= step.layer_inputs[:, self._layer]
        return self._projection(gate_TS)


@dataclass(frozen=True, slots=True, kw_only=True)
class InputTables:
    """Where the vectors of all layers come from: the sum of a table's row and a projection of the embedding.

    Canonical names: table, projection, norm.

    Attributes:
        vocab_size: Rows of the table.
        layers: How many vectors.
        size: Of each.
        norm: Of each projected vector.
        is_partial: Whether there are tokens past the table's end, which have its first row.
    """

    vocab_size: int
    layers: int
    size: int
    norm: Norm
    is_partial: bool = False

    def parameters(self, width: int) -> Iterator[Parameter]:
        """The table, the projection and the norm, whole on every rank."""
        yield from linear("table", self.vocab_size, self.layers * self.size, quantizable=False)
        yield from linear("projection", self.layers * self.size, width)
        yield from self.norm.parameters("norm", self.size)


class RunningTables:
    """The runtime of `InputTables`."""

    __slots__ = ("_is_partial", "_norm", "_projection", "_shape", "_table", "_table_scale")

    def __init__(self, spec: InputTables, weights: Weights, setup: Setup) -> None:
        self._table, self._projection = weights["table.weight"], Linear(weights, "projection")
        self._norm = spec.norm.build(weights, "norm")
        self._is_partial = spec.is_partial
        self._shape = (-1, spec.layers, spec.size)
        # Rounded, as the reference implementation keeps the factor in the model's number format.
        self._table_scale = torch.tensor(math.sqrt(spec.size), dtype=setup.dtype).item()

    def compute(self, input_ids: Tensor, first_TE: Tensor) -> Tensor:
        """From ids [T] and the first hidden states [T, E] the vectors [T, layers, size]."""
        if self._is_partial:
            input_ids = torch.where(input_ids < self._table.shape[0], input_ids, 0)
        projected_TLS = self._projection(first_TE).view(self._shape)
        projected_TLS *= first_TE.shape[1] ** -0.5
        self._norm.apply(projected_TLS, projected_TLS)
        projected_TLS += (F.embedding(input_ids, self._table) * self._table_scale).view(self._shape)
        projected_TLS *= 2.0**-0.5
        return projected_TLS


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaledLayer:
    """A layer after which the whole stream is scaled by a trained number (`scale`).

    Attributes:
        layer: The layer.
        tables: On the first layer, where the layers' own inputs come from (below `layer_inputs`).
    """

    layer: LayerSpec
    tables: InputTables | None = None

    def parameters(self, width: int, shard: Shard) -> Iterator[Parameter]:
        """Those of the tables, the layer, and the scale."""
        if self.tables is not None:
            yield from below("layer_inputs.", self.tables.parameters(width))
        yield from self.layer.parameters(width, shard)
        yield tensor("scale", (1,), default=1.0)

    def caches(self, shard: Shard) -> tuple[CacheSpec, ...]:
        """Those of the layer."""
        return self.layer.caches(shard)

    def build(self, weights: Weights, setup: Setup) -> RunningLayer:
        """The runtime."""
        tables = None
        if self.tables is not None:
            tables = RunningTables(self.tables, weights.below("layer_inputs."), setup)
        return _RunningScaledLayer(self.layer.build(weights, setup), weights["scale"], tables)


class _RunningScaledLayer:
    __slots__ = ("_layer", "_scale", "_tables")

    def __init__(self, layer: RunningLayer, scale: Tensor, tables: RunningTables | None) -> None:
        self._layer, self._scale, self._tables = layer, scale, tables

    def run(self, stream: Stream, step: Step) -> None:
        if self._tables is not None:
            step.layer_inputs = self._tables.compute(step.input_ids, stream.whole())
        self._layer.run(stream, step)
        stream.replace(stream.whole() * self._scale)
