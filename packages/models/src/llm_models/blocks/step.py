"""Owns what blocks read during a step and while they are built; knows nothing about any kind of block."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch
from llm_distributed import DeviceMesh
from llm_kernels.ops import AttentionMetadata
from torch import Tensor

from llm_models.parameters import Parameter, Shard, scale_names
from llm_models.rope import Rope, cos_sin_table


@dataclass(slots=True)
class Packed:
    """Whole sequences side by side, for a pass without a cache (encoders, pooling).

    Attributes:
        cu_lens: int32 [R + 1], prefix sums of the sequences' lengths.
        max_len: The longest.
    """

    cu_lens: Tensor
    max_len: int


@dataclass(slots=True)
class Step:
    """One forward pass.

    Attributes:
        input_ids: int64 [T].
        positions: int64 [T], of each token in its sequence.
        metadata: One a cache; empty for a pass without caches.
        caches: The tensors of each cache.
        packed: The sequences of a pass without caches, else None.
        embeddings: [T, E], the first hidden states. The stream adds to this very tensor: a layer that reads
            them later puts a copy in its place before it runs.
        layer_inputs: [T, layers, size], what each layer mixes in besides the stream; None where none does.
    """

    input_ids: Tensor
    positions: Tensor
    metadata: Sequence[AttentionMetadata]
    caches: Sequence[tuple[Tensor, ...]]
    packed: Packed | None
    embeddings: Tensor
    layer_inputs: Tensor | None = None


class Weights:
    """The parameters below a prefix."""

    __slots__ = ("_parameters", "_prefix")

    def __init__(self, parameters: Mapping[str, Tensor], prefix: str = "") -> None:
        self._parameters = parameters
        self._prefix = prefix

    def __getitem__(self, name: str) -> Tensor:
        return self._parameters[self._prefix + name]

    def get(self, name: str) -> Tensor | None:
        """The parameter, or None where there is none."""
        return self._parameters.get(self._prefix + name)

    def below(self, prefix: str) -> "Weights":
        """The parameters below a further prefix."""
        return Weights(self._parameters, self._prefix + prefix)

    def chosen(self, prefix: str, parameters: Iterable[Parameter]) -> dict[str, Tensor]:
        """Some of the parameters below a prefix, under their names there, with the scales that they have."""
        found = {}
        for parameter in parameters:
            found[parameter.name] = self[prefix + parameter.name]
            for name in scale_names(parameter.name):
                scale = self.get(prefix + name)
                if scale is not None:
                    found[name] = scale
        return found

    def elsewhere(self, prefix: str) -> "Weights":
        """The parameters below a prefix of the whole model, for layers that use another's."""
        return Weights(self._parameters, prefix)


class MemoryReader(Protocol):
    """A block that caches what it makes of an encoder's states."""

    @property
    def cache(self) -> int:
        """Index of its cache."""
        ...

    def write(self, states_SE: Tensor, slots: Tensor, caches: Sequence[tuple[Tensor, ...]]) -> None:
        """Fills the slots int64 [S] of its cache from the states [S, E]."""
        ...


@dataclass(slots=True, kw_only=True)
class Setup:
    """What building blocks share.

    Attributes:
        device: Where the model is.
        dtype: Its number format.
        shard: This rank's place in tensor parallelism.
        mesh: For the sums over ranks.
        layer: Number of the layer that is being built.
        num_caches: Caches given out so far.
        attention_caches: By layer, the cache of its attention, for layers that read another's.
        cache_scales: By cache, the scales of its keys and values in e4m3, where a checkpoint has them.
        memory_readers: Blocks that read an encoder's states, as they were built.
    """

    device: torch.device
    dtype: torch.dtype
    shard: Shard
    mesh: DeviceMesh
    layer: int = 0
    num_caches: int = 0
    attention_caches: dict[int, int] = field(default_factory=dict)
    cache_scales: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)
    memory_readers: list[MemoryReader] = field(default_factory=list)
    _tables: dict[Rope, Tensor] = field(default_factory=dict)

    def next_cache(self) -> int:
        """Gives out the next cache's index, in the order of the specs' `caches`."""
        self.num_caches += 1
        return self.num_caches - 1

    def rope_table(self, rope: Rope) -> Tensor:
        """Cos and sin of a rope; layers with the same rope share one table."""
        if rope not in self._tables:
            self._tables[rope] = cos_sin_table(rope, self.device)
        return self._tables[rope]

    def sum_ranks(self, x: Tensor) -> Tensor:
        """Sums the partial results of all ranks, in place."""
        return self.mesh.all_reduce(x, "tp") if self.shard.size > 1 else x
