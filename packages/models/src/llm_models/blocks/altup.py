"""Owns layers over several residual streams, of which one is computed and the others follow (AltUp).

Knows nothing about mixers. The method is that of arXiv:2301.13310, with the low-rank residual of LAuReL
(arXiv:2411.07501) beside the mixer. Between these layers the stream is [streams, T, E].
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from llm_models.blocks.layer import Block, BlockSpec, RunningLayer, Stream
from llm_models.blocks.layer_input import InputTables, LayerInput, RunningTables
from llm_models.blocks.linear import Linear
from llm_models.blocks.norm import Norm, NormOp
from llm_models.blocks.step import Setup, Step, Weights
from llm_models.caches import CacheSpec
from llm_models.parameters import Parameter, Part, Shard, below, linear, tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class AltUp:
    """The streams and how they follow the computed one.

    Canonical names: router, router_norm, predict, correct, output_scale.

    Attributes:
        streams: How many.
        active: The one that is computed.
        norm: Of the router's input.
        scales_output: Whether the active stream is scaled before the layer's own input is mixed in.
    """

    streams: int
    active: int
    norm: Norm
    scales_output: bool = True

    def parameters(self, width: int) -> Iterator[Parameter]:
        """Small matrices, whole on every rank."""
        yield from linear("router", self.streams, width, quantizable=False)
        yield from self.norm.parameters("router_norm", width)
        yield from linear("predict", self.streams**2, self.streams, quantizable=False)
        yield from linear("correct", self.streams, self.streams, quantizable=False)
        yield tensor("output_scale", (width,), kind="norm")


@dataclass(frozen=True, slots=True, kw_only=True)
class AltUpLayer:
    """One layer over several streams.

    Canonical names: altup.*, laurel.left, laurel.right, laurel.post_norm, the blocks' with `norm` and
    `post_norm` each, layer_input.post_norm; on the first layer layer_inputs.* and expand.N, on the last
    merge.N, which lead to and from stream N + 1.

    Attributes:
        altup: The streams.
        mixer: On the active stream.
        feed_forward: After it.
        norm: The kind of all norms.
        laurel_rank: Rank of the residual matrix beside the mixer.
        layer_input: What is mixed into all streams but the first.
        tables: On the first layer, where the layers' own inputs come from.
        is_last: Whether the streams are merged into one.
    """

    altup: AltUp
    mixer: BlockSpec
    feed_forward: BlockSpec
    norm: Norm
    laurel_rank: int
    layer_input: LayerInput
    tables: InputTables | None = None
    is_last: bool = False

    def parameters(self, width: int, shard: Shard) -> Iterator[Parameter]:
        """Those of the streams, the blocks and their norms."""
        if self.tables is not None:
            yield from below("layer_inputs.", self.tables.parameters(width))
            yield self._projections("expand", width)
        yield from below("altup.", self.altup.parameters(width))
        yield from linear("laurel.left", self.laurel_rank, width)
        yield from linear("laurel.right", width, self.laurel_rank)
        yield from self.norm.parameters("laurel.post_norm", width)
        for block in (self.mixer, self.feed_forward):
            yield from self.norm.parameters(f"{block.name}.norm", width)
            yield from self.norm.parameters(f"{block.name}.post_norm", width)
            yield from below(f"{block.name}.", block.parameters(width, shard))
        name = self.layer_input.name
        yield from below(f"{name}.", self.layer_input.parameters(width, shard))
        yield from self.norm.parameters(f"{name}.post_norm", width)
        if self.is_last:
            yield self._projections("merge", width)

    def caches(self, shard: Shard) -> tuple[CacheSpec, ...]:
        """Those of the blocks."""
        return (*self.mixer.caches(shard), *self.feed_forward.caches(shard))

    def build(self, weights: Weights, setup: Setup) -> RunningLayer:
        """The runtime."""
        return _RunningAltUpLayer(self, weights, setup)

    def _projections(self, name: str, width: int) -> Parameter:
        count = self.altup.streams - 1
        parts = tuple(Part(name=f"{name}.{index}.weight", shape=(width, width)) for index in range(count))
        return Parameter(name=f"{name}.weight", shape=(count, width, width), parts=parts, lead=2)


class _RunningAltUp:
    __slots__ = ("_active", "_correct", "_norm", "_predict", "_router", "_streams", "output_scale")

    def __init__(self, spec: AltUp, weights: Weights) -> None:
        self._streams, self._active = spec.streams, spec.active
        self._router, self._norm = Linear(weights, "router"), spec.norm.build(weights, "router_norm")
        self._predict, self._correct = Linear(weights, "predict"), Linear(weights, "correct")
        self.output_scale = weights["output_scale"] if spec.scales_output else None

    def predict(self, x_STE: Tensor) -> Tensor:
        """What the streams would be after the layer, from what they are."""
        coefficients = self._predict(self._modalities(x_STE[self._active]))
        mixing_TSS = coefficients.view(-1, self._streams, self._streams)
        return torch.einsum("tba,ate->bte", mixing_TSS, x_STE) + x_STE

    def correct(self, predicted_STE: Tensor, computed_TE: Tensor) -> Tensor:
        """Takes every stream on by a share of what the prediction of the computed one was off by."""
        shares_TS = self._correct(self._modalities(computed_TE)) + 1
        off_TE = computed_TE - predicted_STE[self._active]
        return predicted_STE + shares_TS.t()[:, :, None] * off_TE

    def _modalities(self, x_TE: Tensor) -> Tensor:
        normed_TE = torch.empty_like(x_TE)
        self._norm.apply(normed_TE, x_TE)
        normed_TE *= 1 / x_TE.shape[-1]
        return torch.tanh(self._router(normed_TE).float()).to(x_TE.dtype)


class _RunningAltUpLayer:
    __slots__ = (
        "_active",
        "_altup",
        "_expand",
        "_feed_forward",
        "_laurel",
        "_layer_input",
        "_merge",
        "_mixer",
        "_tables",
    )

    def __init__(self, spec: AltUpLayer, weights: Weights, setup: Setup) -> None:
        self._active = spec.altup.active
        self._altup = _RunningAltUp(spec.altup, weights.below("altup."))
        self._laurel = _Laurel(spec.norm, weights.below("laurel."))
        self._mixer = _Normed(spec.mixer, spec.norm, weights, setup)
        self._feed_forward = _Normed(spec.feed_forward, spec.norm, weights, setup)
        self._layer_input = _Normed(spec.layer_input, spec.norm, weights, setup, has_pre=False)
        self._tables, self._expand = None, None
        if spec.tables is not None:
            self._tables = RunningTables(spec.tables, weights.below("layer_inputs."), setup)
            self._expand = weights["expand.weight"]
        self._merge = weights["merge.weight"] if spec.is_last else None

    def run(self, stream: Stream, step: Step) -> None:
        x_STE = stream.whole()
        if self._tables is not None and self._expand is not None:
            step.layer_inputs = self._tables.compute(step.input_ids, x_STE)
            x_STE = _expanded(x_STE, self._expand)
        predicted_STE = self._altup.predict(x_STE)
        x_STE = self._altup.correct(predicted_STE, self._computed(predicted_STE[self._active], step))
        first_TE = x_STE[self._active]
        if self._altup.output_scale is not None:
            first_TE = first_TE * self._altup.output_scale
        x_STE[1:] += self._layer_input.run(first_TE, step)
        stream.replace(x_STE if self._merge is None else _merged(x_STE, self._merge))

    def _computed(self, x_TE: Tensor, step: Step) -> Tensor:
        """The active stream through both blocks."""
        normed_TE = self._mixer.normed(x_TE)
        mixed_TE = x_TE + self._mixer.after(normed_TE, step)
        mixed_TE = (mixed_TE + self._laurel.run(normed_TE)) / math.sqrt(2)
        return mixed_TE + self._feed_forward.run(mixed_TE, step)


class _Normed:
    """A block between its two norms."""

    __slots__ = ("_block", "_post", "_pre")

    def __init__(
        self, spec: BlockSpec, norm: Norm, weights: Weights, setup: Setup, *, has_pre: bool = True
    ) -> None:
        inside = weights.below(f"{spec.name}.")
        self._block: Block = spec.build(inside, setup)
        self._pre: NormOp | None = norm.build(inside, "norm") if has_pre else None
        self._post: NormOp = norm.build(inside, "post_norm")

    def normed(self, x_TE: Tensor) -> Tensor:
        if self._pre is None:
            return x_TE
        normed_TE = torch.empty_like(x_TE)
        self._pre.apply(normed_TE, x_TE)
        return normed_TE

    def after(self, normed_TE: Tensor, step: Step) -> Tensor:
        out_TE = self._block.run(normed_TE, step)
        self._post.apply(out_TE, out_TE)
        return out_TE

    def run(self, x_TE: Tensor, step: Step) -> Tensor:
        return self.after(self.normed(x_TE), step)


class _Laurel:
    """A residual connection with a normed matrix of low rank beside it."""

    __slots__ = ("_left", "_norm", "_right")

    def __init__(self, norm: Norm, weights: Weights) -> None:
        self._left, self._right = Linear(weights, "left"), Linear(weights, "right")
        self._norm = norm.build(weights, "post_norm")

    def run(self, x_TE: Tensor) -> Tensor:
        out_TE = self._right(self._left(x_TE))
        self._norm.apply(out_TE, out_TE)
        out_TE += x_TE
        return out_TE


def _expanded(first_TE: Tensor, projections: Tensor) -> Tensor:
    """The streams: the first, and its projections at its magnitude."""
    return torch.stack([first_TE, *(_at_magnitude(first_TE, F.linear(first_TE, p)) for p in projections)])


def _merged(x_STE: Tensor, projections: Tensor) -> Tensor:
    """The mean of the first stream and projections of the others at its magnitude."""
    others = zip(x_STE[1:], projections, strict=True)
    projected = [_at_magnitude(x_STE[0], F.linear(x_TE, projection)) for x_TE, projection in others]
    return torch.stack([x_STE[0], *projected]).mean(dim=0)


def _at_magnitude(like_TE: Tensor, x_TE: Tensor) -> Tensor:
    wanted = like_TE.square().mean(dim=-1, keepdim=True).sqrt()
    return x_TE * wanted / x_TE.square().mean(dim=-1, keepdim=True).clamp(min=1e-5).sqrt()
