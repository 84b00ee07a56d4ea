"""Owns the runtime of `EncoderDecoderSpec`: an encoder, and a decoder that attends to its states.

Knows nothing about files, requests or scheduling. The encoder runs once an input, without a cache. Its states
become keys and values in the decoder's cross caches; from then on the decoder runs as any other.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Protocol

import torch
import torch.nn.functional as F
from llm_distributed import DeviceMesh
from torch import Tensor

from llm_models.blocks.layer import Stream
from llm_models.blocks.step import Packed, Setup, Step, Weights
from llm_models.decoder import Caches, Decoder, build_layers, decoder_parameters, layer_parameters
from llm_models.embedding import RunningEmbedding, embedding_parameters
from llm_models.parameters import WHOLE, Parameter, Shard, below, tensor
from llm_models.spec import AudioEmbedding, EncoderDecoderSpec, EncoderSpec

_TABLE = "embedding.weight"
_TAPS = 3


class EncoderDecoder(Decoder):
    """A decoder with its encoder, the weights of both on one device.

    `caches` holds cross caches among others: `metadata` of a step gives for these the encoder's lengths as
    `context_lens` and the blocks of its states; what it says of slots is not used.

    Args:
        spec: What to run.
        parameters: Every tensor of `encoder_decoder_parameters(spec, shard)`, by name, on one device.
        mesh: The ranks that share the layers; None: this one alone.
    """

    def __init__(
        self, spec: EncoderDecoderSpec, parameters: Mapping[str, Tensor], mesh: DeviceMesh | None = None
    ) -> None:
        super().__init__(spec.decoder, parameters, mesh)
        self.encoder_spec, self.start = spec.encoder, spec.start
        weights = dict(parameters)
        if spec.encoder.shares_table:
            weights[f"encoder.{_TABLE}"] = weights[_TABLE]
        setup = Setup(device=self.device, dtype=self.dtype, shard=self._shard, mesh=self._mesh)
        self._encoder = _Encoder(spec.encoder, Weights(weights, "encoder."), setup)

    @property
    def capturable(self) -> bool:
        """Not yet: a bias by distance runs in torch alone, which reads lengths on the host."""
        return False

    @property
    def cross_caches(self) -> tuple[int, ...]:
        """Which of `caches` hold keys and values of the encoder's states."""
        return tuple(reader.cache for reader in self._memory_readers)

    def num_states(self, one: Tensor) -> int:
        """States of an input of `encode`.

        Raises:
            ValueError: It is of a wrong shape.
        """
        return self._encoder.num_states(one)

    @torch.inference_mode()
    def encode(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        """Runs the encoder over whole inputs, packed side by side.

        Args:
            inputs: For each text its ids, int64 [tokens]; for each sound its log-mel spectrogram, float
                [mel bins, frames]. On the model's device.

        Returns:
            For each, its states [S, E] in the weights' dtype: one a token, or one for two frames.

        Raises:
            ValueError: There is no input; one is empty, longer than the encoder's positions, or of a wrong
                shape.
        """
        return self._encoder.run(inputs)

    @torch.inference_mode()
    def write_cross(self, states_SE: Tensor, slots: Sequence[Tensor], caches: Caches) -> None:
        """Fills the cross caches from the encoder's states.

        Args:
            states_SE: [S, E], of one input or several one after the other.
            slots: For each of `cross_caches`, int64 [S]: block * block size + place in the block; -1 writes
                nothing. Caches of one KV group may share a tensor.
            caches: The tensors of each of `self.caches`.

        Raises:
            ValueError: Not one entry a cross cache.
        """
        if len(slots) != len(self._memory_readers):
            raise ValueError(f"{len(slots)} tensors of slots for {len(self._memory_readers)} cross caches")
        for reader, slots_S in zip(self._memory_readers, slots, strict=True):
            reader.write(states_SE, slots_S, caches)


def encoder_decoder_parameters(spec: EncoderDecoderSpec, shard: Shard = WHOLE) -> tuple[Parameter, ...]:
    """All parameters on one rank: the decoder's, then the encoder's, whose names begin with `encoder.`.

    Raises:
        ShardingError: A size cannot be shared out among the ranks.
    """
    return (*decoder_parameters(spec.decoder, shard), *below("encoder.", _parameters(spec.encoder, shard)))


def _parameters(spec: EncoderSpec, shard: Shard) -> Iterator[Parameter]:
    width = spec.hidden_size
    if isinstance(spec.embedding, AudioEmbedding):
        yield from _audio_parameters(spec.embedding, width)
    else:
        for parameter in embedding_parameters(spec.embedding, width, shard):
            if parameter.name != _TABLE or not spec.shares_table:
                yield parameter
    yield from layer_parameters(spec.layers, width, shard)
    if spec.final_norm is not None:
        yield from spec.final_norm.parameters("final_norm", width)


def _audio_parameters(embedding: AudioEmbedding, width: int) -> Iterator[Parameter]:
    for name, channels in (("conv1", embedding.num_mel_bins), ("conv2", width)):
        yield tensor(f"{name}.weight", (width, channels, _TAPS), kind="matrix")
        yield tensor(f"{name}.bias", (width,), kind="bias")
    yield tensor("positions.weight", (embedding.num_positions, width), kind="matrix")


class _Encoder:
    """The runtime of `EncoderSpec`."""

    def __init__(self, spec: EncoderSpec, weights: Weights, setup: Setup) -> None:
        self._spec = spec
        self._embed: _WayIn
        if isinstance(spec.embedding, AudioEmbedding):
            self._embed = _Audio(spec.embedding, weights)
        else:
            self._embed = _Text(RunningEmbedding(spec.embedding, weights, setup))
        self._layers = build_layers(spec.layers, weights, setup)
        norm = spec.final_norm
        self._final_norm = None if norm is None else norm.build(weights, "final_norm")

    def num_states(self, one: Tensor) -> int:
        return self._embed.length(one)

    def run(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        if not inputs:
            raise ValueError("there is no input to encode")
        lengths = [self._embed.length(one) for one in inputs]
        for length in lengths:
            if not 0 < length <= self._spec.max_positions:
                raise ValueError(f"an input of {length} states; it must be 1 to {self._spec.max_positions}")
        device = inputs[0].device
        positions = torch.cat([torch.arange(length, device=device) for length in lengths])
        first_SE = self._embed.run(inputs, positions)
        ends = torch.tensor([0, *accumulate(lengths)], dtype=torch.int32, device=device)
        step = Step(positions, positions, (), (), Packed(ends, max(lengths)), first_SE)
        stream = Stream(first_SE)
        for layer in self._layers:
            layer.run(stream, step)
        states_SE = stream.whole() if self._final_norm is None else stream.normed(self._final_norm)
        return list(torch.split(states_SE, lengths))


class _WayIn(Protocol):
    def length(self, one: Tensor) -> int:
        """States of an input."""
        ...

    def run(self, inputs: Sequence[Tensor], positions: Tensor) -> Tensor:
        """First hidden states [S, E] of the inputs, whose states stand at `positions`."""
        ...


class _Text:
    """The way in of token ids."""

    def __init__(self, embedding: RunningEmbedding) -> None:
        self._embedding = embedding

    def length(self, one: Tensor) -> int:
        if one.ndim != 1:
            raise ValueError(f"a text must be ids [tokens], not {list(one.shape)}")
        return len(one)

    def run(self, inputs: Sequence[Tensor], positions: Tensor) -> Tensor:
        return self._embedding.run(torch.cat(list(inputs)), positions, None)


class _Audio:
    """The way in of sounds, the runtime of `AudioEmbedding`."""

    def __init__(self, spec: AudioEmbedding, weights: Weights) -> None:
        self._spec = spec
        self._first = weights["conv1.weight"], weights["conv1.bias"]
        self._second = weights["conv2.weight"], weights["conv2.bias"]
        self._positions = weights["positions.weight"]

    def length(self, one: Tensor) -> int:
        if one.ndim != 2 or one.shape[0] != self._spec.num_mel_bins:
            wanted = f"[{self._spec.num_mel_bins}, frames]"
            raise ValueError(f"a spectrogram must be {wanted}, not {list(one.shape)}")
        return (one.shape[1] + 1) // 2

    def run(self, inputs: Sequence[Tensor], positions: Tensor) -> Tensor:
        states_SE = torch.cat([self._convolve(one.to(self._positions.dtype)) for one in inputs])
        return states_SE + F.embedding(positions, self._positions)

    def _convolve(self, mel_MF: Tensor) -> Tensor:
        first_EF = F.gelu(F.conv1d(mel_MF, *self._first, padding=1))
        second_ES = F.gelu(F.conv1d(first_EF, *self._second, stride=2, padding=1))
        return second_ES.T
