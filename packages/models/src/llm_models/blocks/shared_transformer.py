"""Owns layers whose mixer is led by a transformer block that several layers share (Zamba, arXiv:2405.16712).

The shared block reads the stream beside the first embeddings, and its output joins the mixer's input only.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from llm_models.blocks.attention import Attention, RunningAttention
from llm_models.blocks.layer import Block, BlockSpec, LayerSpec, RunningLayer, Stream
from llm_models.blocks.linear import Linear
from llm_models.blocks.mlp import MLP, RunningMLP
from llm_models.blocks.norm import Norm, NormOp
from llm_models.blocks.step import Setup, Step, Weights
from llm_models.caches import CacheSpec
from llm_models.parameters import Parameter, Rows, Shard, below, linear, stacked_linear


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedTransformer:
    """A block of attention and feed-forward without residual connections, with adapters for single layers.

    Canonical names, in the layer that owns the weights: shared.norm (of stream and embeddings), attention.*,
    mlp.norm, mlp.*; and for the K-th of all layers with such a block attention.adapters.K.query.down, .up
    (key, value), mlp.adapters.K.down, mlp.adapters.K.gate.up, mlp.adapters.K.up.up.

    Attributes:
        attention: Over inputs twice as wide as the hidden states.
        mlp: The feed-forward, gated.
        norm: Before attention, and between attention and feed-forward.
        attention_adapter_rank: Of what is added to query, key and value; None: nothing.
        mlp_adapter_rank: Of what is added to gate and up.
    """

    attention: Attention
    mlp: MLP
    norm: Norm
    attention_adapter_rank: int | None = None
    mlp_adapter_rank: int | None = None

    def parameters(self, width: int, shard: Shard, adapters: tuple[int, ...]) -> Iterator[Parameter]:
        """All but what each layer has of its own, and the adapters of the layers with these numbers."""
        yield from self.norm.parameters("shared.norm", 2 * width)
        yield from below("attention.", self.attention_parameters(width, shard))
        yield from self.norm.parameters("mlp.norm", width)
        yield from below("mlp.", self.mlp.parameters(width, shard))
        for adapter in adapters:
            yield from self._adapter_parameters(width, shard, adapter)

    def attention_parameters(self, width: int, shard: Shard) -> Iterator[Parameter]:
        """Those of attention from twice the width to the width."""
        for parameter in self.attention.parameters(2 * width, shard):
            if not parameter.name.startswith("output."):
                yield parameter
        size, heads = self.attention.value_head_size, self.attention.num_heads
        first, end = shard.span(heads, "num_attention_heads")
        yield from linear("output", width, heads * size, taken_columns=(first * size, end * size))

    def _adapter_parameters(self, width: int, shard: Shard, adapter: int) -> Iterator[Parameter]:
        inside = f"attention.adapters.{adapter}"
        rank = self.attention_adapter_rank
        if rank is not None:
            rows = self._attention_rows(shard)
            downs = {f"{inside}.{name}.down": Rows(rank) for name in rows}
            yield from stacked_linear(f"{inside}.down", downs, 2 * width, quantizable=False)
            for name, part in rows.items():
                yield from linear(
                    f"{inside}.{name}.up", part.total, rank, taken_rows=part.span, quantizable=False
                )
        inside, rank = f"mlp.adapters.{adapter}", self.mlp_adapter_rank
        if rank is not None:
            total = self.mlp.intermediate_size
            inner = Rows(total, shard.span(total, "intermediate_size"))
            yield from linear(f"{inside}.down", rank, width, quantizable=False)
            ups = {f"{inside}.gate.up": inner, f"{inside}.up.up": inner}
            yield from stacked_linear(f"{inside}.up", ups, rank, quantizable=False)

    def _attention_rows(self, shard: Shard) -> dict[str, Rows]:
        mixer = self.attention
        first, end = shard.span(mixer.num_heads, "num_attention_heads")
        kv_first, kv_end = shard.replicated_span(mixer.num_kv_heads, "num_key_value_heads")
        size, value_size = mixer.head_size, mixer.value_head_size
        return {
            "query": Rows(mixer.num_heads * size, (first * size, end * size)),
            "key": Rows(mixer.num_kv_heads * size, (kv_first * size, kv_end * size)),
            "value": Rows(mixer.num_kv_heads * value_size, (kv_first * value_size, kv_end * value_size)),
        }

    def build(self, weights: Weights, setup: Setup, adapter: int) -> "RunningSharedTransformer":
        """The runtime with the adapter of one layer; `weights` are those of the layer that owns them."""
        width = weights["mlp.norm.weight"].shape[0]
        shard = setup.shard
        mixer = weights.chosen("attention.", self.attention_parameters(width, shard))
        inside = f"attention.adapters.{adapter}"
        if self.attention_adapter_rank is not None:
            mixer["input_adapter_down.weight"] = weights[f"{inside}.down.weight"]
            ups = [weights[f"{inside}.{name}.up.weight"] for name in ("query", "key", "value")]
            mixer["input_adapter_up.weight"] = torch.block_diag(*ups)  # type: ignore[no-untyped-call]
        mlp = weights.chosen("mlp.", self.mlp.parameters(width, shard))
        if self.mlp_adapter_rank is not None:
            for side in ("down", "up"):
                mlp[f"input_adapter_{side}.weight"] = weights[f"mlp.adapters.{adapter}.{side}.weight"]
        return RunningSharedTransformer(
            self.norm.build(weights, "shared.norm"),
            self.attention.build(Weights(mixer), setup),
            self.norm.build(weights, "mlp.norm"),
            self.mlp.build(Weights(mlp), setup),
        )


class RunningSharedTransformer:
    """The runtime of `SharedTransformer`."""

    __slots__ = ("_attention", "_mlp", "_mlp_norm", "_norm")

    def __init__(self, norm: NormOp, attention: RunningAttention, mlp_norm: NormOp, mlp: RunningMLP) -> None:
        self._norm, self._attention, self._mlp_norm, self._mlp = norm, attention, mlp_norm, mlp

    def run(self, x_TE: Tensor, step: Step) -> Tensor:
        """The stream [T, E] to a new tensor [T, E]."""
        both_TF = torch.cat((x_TE, step.embeddings), dim=-1)
        self._norm.apply(both_TF, both_TF)
        mixed_TE = self._attention.run(both_TF, step)
        self._mlp_norm.apply(mixed_TE, mixed_TE)
        return self._mlp.run(mixed_TE, step)


@dataclass(frozen=True, slots=True, kw_only=True)
class LedLayer:
    """A layer: `x + mixer(norm(x + output(shared(x, embeddings))))`.

    Canonical names: mixer.norm, shared.output, those of the mixer, and in the owner those of the shared
    block.

    Attributes:
        shared: The shared block.
        owner: The layer that holds its weights.
        adapter: Number of this layer among those with a shared block.
        adapters: In the owner: the numbers of all layers that share its weights; else empty.
        mixer: The layer's own block.
        norm: Before it.
    """

    shared: SharedTransformer
    owner: int
    adapter: int
    adapters: tuple[int, ...]
    mixer: BlockSpec
    norm: Norm

    def parameters(self, width: int, shard: Shard) -> Iterator[Parameter]:
        """The shared ones in the owner only."""
        if self.adapters:
            yield from self.shared.parameters(width, shard, self.adapters)
        yield from linear("shared.output", width, width)
        yield from self.norm.parameters("mixer.norm", width)
        yield from below(f"{self.mixer.name}.", self.mixer.parameters(width, shard))

    def caches(self, shard: Shard) -> tuple[CacheSpec, ...]:
        """Those of attention, then of the mixer."""
        return (*self.shared.attention.caches(shard), *self.mixer.caches(shard))

    def build(self, weights: Weights, setup: Setup) -> "RunningLedLayer":
        """The runtime."""
        owner = weights.elsewhere(f"layers.{self.owner}.")
        return RunningLedLayer(
            self.shared.build(owner, setup, self.adapter),
            Linear(weights, "shared.output"),
            self.norm.build(weights, "mixer.norm"),
            self.mixer.build(weights.below(f"{self.mixer.name}."), setup),
        )


class RunningLedLayer:
    """The runtime of `LedLayer`."""

    __slots__ = ("_mixer", "_norm", "_output", "_shared")

    def __init__(self, shared: RunningSharedTransformer, output: Linear, norm: NormOp, mixer: Block) -> None:
        self._shared, self._output, self._norm, self._mixer = shared, output, norm, mixer

    def run(self, stream: Stream, step: Step) -> None:
        """Adds the mixer's output to the stream."""
        x_TE = stream.whole()
        led_TE = self._output(self._shared.run(x_TE, step))
        led_TE += x_TE
        self._norm.apply(led_TE, led_TE)
        stream.add(self._mixer.run(led_TE, step))


@dataclass(frozen=True, slots=True)
class EmbeddingKeeper:
    """The first layer of a model whose later layers read the first embeddings again: it keeps a copy."""

    layer: LayerSpec

    def parameters(self, width: int, shard: Shard) -> Iterator[Parameter]:
        """Those of the layer."""
        return self.layer.parameters(width, shard)

    def caches(self, shard: Shard) -> tuple[CacheSpec, ...]:
        """Those of the layer."""
        return self.layer.caches(shard)

    def build(self, weights: Weights, setup: Setup) -> RunningLayer:
        """The runtime."""
        return _RunningEmbeddingKeeper(self.layer.build(weights, setup))


class _RunningEmbeddingKeeper:
    __slots__ = ("_layer",)

    def __init__(self, layer: RunningLayer) -> None:
        self._layer = layer

    def run(self, stream: Stream, step: Step) -> None:
        # The stream is summed up in place, and starts as the embeddings.
        step.embeddings = stream.whole().clone()
        self._layer.run(stream, step)
