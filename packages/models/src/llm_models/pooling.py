"""Owns models that turn whole texts into vectors or scores: a body, a way to pool, a head.

Knows nothing about files or requests. The body is any `DecoderSpec`; encoders are bodies whose attention is
not causal.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from llm_distributed import DeviceMesh
from llm_kernels import ops
from torch import Tensor

from llm_models.activations import Activation
from llm_models.blocks.attention import Attention
from llm_models.blocks.layer import Layer, LayerSpec, Normed
from llm_models.blocks.norm import Norm, NormOp
from llm_models.blocks.step import Packed, Weights
from llm_models.decoder import Decoder, decoder_parameters
from llm_models.errors import UnsupportedConfig
from llm_models.parameters import WHOLE, Parameter, Shard, linear
from llm_models.spec import DecoderSpec

PoolingKind = Literal["cls", "mean", "max", "last", "token"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Dense:
    """One layer of a head: `norm(activation(linear(x)))`.

    Attributes:
        name: Canonical name; that of the norm is `name.norm`.
        size: Output features.
        bias: Whether there is a bias.
        activation: None for none.
        norm: None for none.
    """

    name: str
    size: int
    bias: bool = True
    activation: Activation | None = None
    norm: Norm | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PooledSpec:
    """A model that answers with one vector a text (or a token).

    Attributes:
        body: What runs over the tokens; its output head is not used.
        pooling: Which hidden states count: of the first token, the mean or the largest of all (channel by
            channel), of the last, or of each.
        head: Layers after pooling; none for embedders.
        pools_last: The head runs over every token, and what it gives is pooled.
        labels: What the head's outputs stand for; empty for embedders.
        normalize: Whether vectors are scaled to length 1.
        max_tokens: Longest text; None: what the body takes.

    Raises:
        UnsupportedConfig: The body has a block that cannot run over whole texts without a cache.
    """

    body: DecoderSpec
    pooling: PoolingKind
    head: tuple[Dense, ...] = ()
    pools_last: bool = False
    labels: tuple[str, ...] = ()
    normalize: bool = False
    max_tokens: int | None = None

    def __post_init__(self) -> None:
        for layer in self.body.layers:
            _check_layer(layer, self.body.architecture)

    @property
    def longest(self) -> int:
        """Most tokens of a text."""
        return min(self.body.max_positions, self.max_tokens or self.body.max_positions)

    @property
    def size(self) -> int:
        """Length of the vectors."""
        return self.head[-1].size if self.head else self.body.hidden_size


def pooled_parameters(spec: PooledSpec, shard: Shard = WHOLE) -> tuple[Parameter, ...]:
    """All parameters on one rank; heads are whole on each."""
    return (*decoder_parameters(spec.body, shard), *_head_parameters(spec))


def _check_layer(layer: LayerSpec, architecture: str) -> None:
    reason = f"{architecture!r} has a {{}}, which does not run over whole texts without a cache"
    if not isinstance(layer, Layer):
        if layer.caches(WHOLE):
            raise UnsupportedConfig("architectures", reason.format(type(layer).__name__))
        return
    for block in (block for branch in layer.branches for block in branch.blocks):
        inner = block.block if isinstance(block, Normed) else block
        if isinstance(inner, Attention):
            if inner.chunk is not None or inner.sinks or inner.kv_from is not None:
                kind = "layer with attention sinks, chunks or another layer's keys"
                raise UnsupportedConfig("architectures", reason.format(kind))
        elif inner.caches(WHOLE):
            raise UnsupportedConfig("architectures", reason.format(type(inner).__name__))


def _head_parameters(spec: PooledSpec) -> Iterator[Parameter]:
    width = spec.body.hidden_size
    for layer in spec.head:
        yield from linear(layer.name, layer.size, width, bias=layer.bias, quantizable=False)
        if layer.norm is not None:
            yield from layer.norm.parameters(f"{layer.name}.norm", layer.size)
        width = layer.size


class PoolingModel:
    """A `PooledSpec` with its weights on one device.

    Args:
        spec: What to run.
        parameters: Every tensor of `pooled_parameters(spec, shard)`, by name, on one device.
        mesh: The ranks that share the layers; None: this one alone.
        body: One that is there already; `parameters` are then those of the head.
    """

    def __init__(
        self,
        spec: PooledSpec,
        parameters: Mapping[str, Tensor],
        mesh: DeviceMesh | None = None,
        *,
        body: Decoder | None = None,
    ) -> None:
        self.spec = spec
        heads = {parameter.name for parameter in _head_parameters(spec)}
        self.body = body or Decoder(
            spec.body, {name: x for name, x in parameters.items() if name not in heads}, mesh
        )
        weights = Weights(parameters)
        self._head = tuple(_DenseOp(layer, weights) for layer in spec.head)

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.body.device

    @torch.inference_mode()
    def run(
        self,
        texts: Sequence[Sequence[int]],
        token_types: Sequence[Sequence[int]] | None = None,
        *,
        normalize: bool | None = None,
        per_token: bool = False,
    ) -> list[Tensor]:
        """Runs whole texts in one pass.

        Args:
            texts: Token ids of each, at least one, at most `spec.body.max_positions`.
            token_types: The tokens' types, for models that tell two texts apart; None: all 0.
            normalize: Whether to scale to length 1; None: as the spec says.
            per_token: Answer for each token, whatever the spec's pooling: the head runs over all of them.

        Returns:
            For each text, float32 on the CPU: its vector [D], or [tokens, D] with pooling `token` or
            `per_token`. Scores are raw (no softmax), vectors are scaled to length 1 where the spec says so.
        """
        lengths = [len(text) for text in texts]
        ends = torch.tensor([0, *lengths]).cumsum(0)
        packed = Packed(ends.to(self.device, torch.int32), max(lengths))
        positions = torch.cat([torch.arange(length) for length in lengths])
        ids, types = _joined(texts), None if token_types is None else _joined(token_types).to(self.device)
        hidden_TE = self.body.forward_packed(ids.to(self.device), positions.to(self.device), packed, types)
        per_token = per_token or self.spec.pooling == "token"
        pooled = hidden_TE if self.spec.pools_last or per_token else self._pool(hidden_TE, ends)
        for layer in self._head:
            pooled = layer.run(pooled)
        if self.spec.pools_last and not per_token:
            pooled = self._pool(pooled, ends)
        pooled = pooled.float()
        if self.spec.normalize if normalize is None else normalize:
            pooled = torch.nn.functional.normalize(pooled, dim=-1)
        on_host = pooled.cpu()
        return list(torch.split(on_host, lengths) if per_token else on_host)

    def _pool(self, hidden_TE: Tensor, ends: Tensor) -> Tensor:
        """[R, E], or [T, E] with pooling `token`."""
        starts, ends = ends[:-1].to(self.device), ends[1:].to(self.device)
        match self.spec.pooling:
            case "cls":
                return hidden_TE[starts]
            case "last":
                return hidden_TE[ends - 1]
            case "mean":
                rows = torch.repeat_interleave(ends - starts)
                sums = torch.zeros(
                    (len(starts), hidden_TE.shape[1]), dtype=torch.float32, device=self.device
                ).index_add_(0, rows, hidden_TE.float())
                return (sums / (ends - starts)[:, None]).to(hidden_TE.dtype)
            case "max":
                lengths = (ends - starts).to(hidden_TE.device)
                return torch.segment_reduce(hidden_TE.float(), "max", lengths=lengths).to(hidden_TE.dtype)
            case "token":
                return hidden_TE


class _DenseOp:
    """The runtime of `Dense`."""

    __slots__ = ("_activation", "_bias", "_norm", "_weight")

    def __init__(self, spec: Dense, weights: Weights) -> None:
        self._weight = weights[f"{spec.name}.weight"]
        self._bias = weights.get(f"{spec.name}.bias")
        self._activation = spec.activation
        self._norm: NormOp | None = None
        if spec.norm is not None:
            self._norm = spec.norm.build(weights, f"{spec.name}.norm")

    def run(self, x_RI: Tensor) -> Tensor:
        x_RO: Tensor = ops.linear(x_RI, self._weight, self._bias)
        if self._activation is not None:
            ops.activation(x_RO, x_RO, self._activation)
        if self._norm is not None:
            self._norm.apply(x_RO, x_RO)
        return x_RO


def _joined(rows: Sequence[Sequence[int]]) -> Tensor:
    return torch.tensor([item for row in rows for item in row], dtype=torch.int64)
