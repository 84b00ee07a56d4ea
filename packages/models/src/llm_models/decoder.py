"""Owns the one runtime that executes any `DecoderSpec`; knows nothing about files, requests or scheduling.

Host time per layer bounds small-batch decoding on a GPU, so blocks are plain objects with slots that hold
their tensors and constants; nothing is looked up or computed in a step that could be known before.
"""

from collections.abc import Iterator, Mapping, Sequence

import torch
import torch.nn.functional as F
from llm_distributed import DeviceMesh
from llm_kernels import ops
from llm_kernels.ops import AttentionMetadata
from torch import Tensor, nn

from llm_models.blocks.layer import LayerSpec, RunningLayer, Stream
from llm_models.blocks.step import Packed, Setup, Step, Weights
from llm_models.caches import CacheSpec
from llm_models.embedding import RunningEmbedding, embedding_parameters, vocabulary_span
from llm_models.model import allocate_caches, bytes_per_block
from llm_models.parameters import WHOLE, Parameter, Rows, Shard, below, linear, stacked_linear, tensor
from llm_models.spec import DecoderSpec

Caches = Sequence[tuple[Tensor, ...]]


class Decoder(nn.Module):
    """A decoder with its weights on one device.

    The parameters are registered (`named_parameters`, `state_dict`), but do not move them: the blocks hold
    them, and the tables of cos and sin, by reference. Load onto the device instead.

    Args:
        spec: What to run.
        parameters: Every tensor of `decoder_parameters(spec, shard)`, by name, on one device.
        mesh: The ranks that share the layers; None: this one alone.
    """

    def __init__(
        self, spec: DecoderSpec, parameters: Mapping[str, Tensor], mesh: DeviceMesh | None = None
    ) -> None:
        super().__init__()
        self.spec = spec
        self._mesh = mesh or DeviceMesh()
        shard = self._shard = Shard(self._mesh.rank("tp"), self._mesh.size("tp"))
        self.caches = decoder_caches(spec, shard)
        _register(self, parameters)
        weights = Weights(parameters)
        self._embedding = weights["embedding.weight"]
        setup = Setup(device=self.device, dtype=self.dtype, shard=shard, mesh=self._mesh)
        self._embed = RunningEmbedding(spec.embedding, weights, setup)
        self._layers = build_layers(spec.layers, weights, setup)
        self._memory_readers = tuple(setup.memory_readers)
        self._final_norm = None if spec.final_norm is None else spec.final_norm.build(weights, "final_norm")
        self._head = _Head(spec, weights, setup)

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self._embedding.device

    @property
    def dtype(self) -> torch.dtype:
        """Number format of the weights, the hidden states and the KV cache."""
        return self._embedding.dtype

    @property
    def capturable(self) -> bool:
        """Whether a CUDA graph can replay a step: the work depends on shapes alone."""
        return True

    @torch.inference_mode()
    def forward(self, input_ids: Tensor, metadata: Sequence[AttentionMetadata], caches: Caches) -> Tensor:
        """Runs the tokens of one step and writes what they leave behind into the caches.

        Args:
            input_ids: int64 [T], every id within the vocabulary.
            metadata: For each of `self.caches`, which rows and blocks the tokens belong to; positions below
                `spec.max_positions`. Caches of one KV group may share an object.
            caches: For each of `self.caches`, its tensors; see `allocate_caches`.

        Returns:
            Hidden states after the final norm, [T, hidden_size], in the weights' dtype.

        Raises:
            ValueError: Not one entry a cache.
        """
        if not len(metadata) == len(caches) == len(self.caches):
            given = f"{len(metadata)} metadata and {len(caches)} sets of tensors"
            raise ValueError(f"{given} for {len(self.caches)} caches")
        return self._run(input_ids, metadata[0].positions, metadata, caches, None)

    @torch.inference_mode()
    def forward_packed(
        self, input_ids: Tensor, positions: Tensor, packed: Packed, token_types: Tensor | None = None
    ) -> Tensor:
        """Runs whole sequences without a cache, as pooling does.

        Args:
            input_ids: int64 [T], the sequences one after the other.
            positions: int64 [T], each token's place in its sequence.
            packed: Where the sequences end.
            token_types: int64 [T], for models that have them; None: all 0.

        Returns:
            Hidden states after the final norm, [T, hidden_size].
        """
        return self._run(input_ids, positions, (), (), packed, token_types)

    @torch.inference_mode()
    def logits(self, hidden_RE: Tensor) -> Tensor:
        """Scores every token of the vocabulary for the given rows of hidden states.

        Returns:
            float32 [R, vocab_size].
        """
        return self.raw_logits(hidden_RE).float()

    @torch.inference_mode()
    def raw_logits(self, hidden_RE: Tensor) -> Tensor:
        """As `logits` in the weights' dtype, for who reads them once: a wider copy costs more than that.

        Returns:
            [R, vocab_size].
        """
        return self._head.scores(hidden_RE)

    def kv_bytes_per_block(self, block_size: int) -> int:
        """Bytes of one block over all caches, each with a block of its own."""
        return bytes_per_block(self.caches, block_size, self.dtype)

    def allocate_caches(self, num_blocks: int, block_size: int) -> list[tuple[Tensor, ...]]:
        """Allocates zeroed tensors of `num_blocks` blocks for each cache, on the model's device."""
        return allocate_caches(self.caches, num_blocks, block_size, self.dtype, self.device)

    def _run(
        self,
        input_ids: Tensor,
        positions: Tensor,
        metadata: Sequence[AttentionMetadata],
        caches: Caches,
        packed: Packed | None,
        token_types: Tensor | None = None,
    ) -> Tensor:
        first_TE = self._embed.run(input_ids, positions, token_types)
        step = Step(input_ids, positions, metadata, caches, packed, first_TE)
        stream = Stream(first_TE)
        for layer in self._layers:
            layer.run(stream, step)
        return stream.whole() if self._final_norm is None else stream.normed(self._final_norm)


def decoder_parameters(spec: DecoderSpec, shard: Shard = WHOLE) -> tuple[Parameter, ...]:
    """All parameters of a decoder on one rank, in the order in which a step reads them.

    Raises:
        ShardingError: A size cannot be shared out among the ranks.
    """
    return tuple(_parameters(spec, shard))


def decoder_caches(spec: DecoderSpec, shard: Shard = WHOLE) -> tuple[CacheSpec, ...]:
    """What a decoder keeps between steps on one rank, in layer order."""
    return tuple(cache for layer in spec.layers for cache in layer.caches(shard))


def _parameters(spec: DecoderSpec, shard: Shard) -> Iterator[Parameter]:
    embedding, head, width = spec.embedding, spec.head, spec.hidden_size
    yield from embedding_parameters(embedding, width, shard)
    yield from layer_parameters(spec.layers, width, shard)
    if spec.final_norm is not None:
        yield from spec.final_norm.parameters("final_norm", width)
    vocabulary = vocabulary_span(embedding, shard)
    if (head.size or width) != width:
        yield from linear("head_projection", head.size or width, width, quantizable=False)
    if not head.tied:
        rows = {"head": Rows(embedding.vocab_size, vocabulary)}
        yield from stacked_linear("head", rows, head.size or width, quantizable=False)
    if head.bias:
        shape = (embedding.vocab_size,)
        yield tensor("head.bias", shape, kind="bias", rows=vocabulary, default=head.bias_default)


class _Head:
    """The runtime of `Head`."""

    __slots__ = ("_bias", "_mesh", "_projection", "_scale", "_soft_cap", "_weight")

    def __init__(self, spec: DecoderSpec, weights: Weights, setup: Setup) -> None:
        head = spec.head
        self._mesh = None if vocabulary_span(spec.embedding, setup.shard) is None else setup.mesh
        self._weight = weights["embedding.weight" if head.tied else "head.weight"]
        if head.unit_rows and not head.tied:
            self._weight.copy_(F.normalize(self._weight.float()))
        self._bias = weights.get("head.bias")
        self._projection = weights.get("head_projection.weight")
        self._scale, self._soft_cap = head.scale, head.soft_cap

    def scores(self, hidden_RE: Tensor) -> Tensor:
        if self._projection is not None:
            hidden_RE = ops.linear(hidden_RE, self._projection)
        scores_RV: Tensor = ops.linear(hidden_RE, self._weight, self._bias)
        if self._mesh is not None:
            scores_RV = self._mesh.all_gather(scores_RV, "tp")
        if self._scale != 1.0:
            scores_RV *= self._scale
        if self._soft_cap is not None:
            scores_RV = self._soft_cap * torch.tanh(scores_RV / self._soft_cap)
        return scores_RV


def layer_parameters(layers: Sequence[LayerSpec], width: int, shard: Shard) -> Iterator[Parameter]:
    """Those of a stack of layers."""
    for index, layer in enumerate(layers):
        yield from below(f"layers.{index}.", layer.parameters(width, shard))


def build_layers(layers: Sequence[LayerSpec], weights: Weights, setup: Setup) -> tuple[RunningLayer, ...]:
    """The runtimes of a stack of layers."""
    running = []
    for index, layer in enumerate(layers):
        setup.layer = index
        running.append(layer.build(weights.below(f"layers.{index}."), setup))
    return tuple(running)


def _register(root: nn.Module, parameters: Mapping[str, Tensor]) -> None:
    """Registers the tensors under their dotted names, through empty modules."""
    for name, parameter in parameters.items():
        module = root
        *path, leaf = name.split(".")
        for step in path:
            if step not in module._modules:
                module.add_module(step, nn.Module())
            module = module.get_submodule(step)
        module.register_parameter(leaf, nn.Parameter(parameter, requires_grad=False))
