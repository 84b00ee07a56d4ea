"""Owns running a model over paged caches as hostile as the contract allows; knows nothing of the engine.

All KV groups draw block ids from one pool, in random order. Whatever a step may not read is wrong numbers:
fresh blocks, blocks given back, block 0 (which stands for entries that were given back).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from llm_kernels.ops import AttentionMetadata
from llm_models.caches import CacheSpec, CrossCacheSpec, KVCacheSpec, StateCacheSpec
from llm_models.encoder_decoder import EncoderDecoder
from llm_models.model import Model
from torch import Tensor

GARBAGE = 37.0
BLOCK_SIZE = 4
STATE_BLOCK_SIZE = 8
SHARED_UNIT = 8
"""Tokens of a prefix hit are multiples of it: of both block sizes."""


@dataclass(frozen=True, slots=True)
class GroupKind:
    """What makes caches share block tables: their kind and reach."""

    block_size: int
    is_state: bool = False
    is_cross: bool = False
    window: int | None = None
    chunk: int | None = None

    @classmethod
    def of(cls, cache: CacheSpec) -> "GroupKind":
        """The group of a cache."""
        if isinstance(cache, StateCacheSpec):
            return cls(STATE_BLOCK_SIZE, is_state=True)
        if isinstance(cache, CrossCacheSpec):
            return cls(BLOCK_SIZE, is_cross=True)
        if isinstance(cache, KVCacheSpec):
            return cls(BLOCK_SIZE, window=cache.window, chunk=cache.chunk)
        return cls(BLOCK_SIZE)

    def first_needed(self, computed: int) -> int:
        """The first entry of the block table that a step from token `computed` on may read."""
        if self.is_state:
            return max(0, computed - 1) // self.block_size
        if self.is_cross:
            return 0
        first_token = 0
        if self.window is not None:
            first_token = max(0, computed - self.window + 1)
        if self.chunk is not None:
            first_token = max(first_token, computed // self.chunk * self.chunk)
        return first_token // self.block_size


@dataclass(slots=True, kw_only=True)
class Held:
    """One sequence: computed tokens, states of its encoder, a block table a group (0: given back)."""

    computed: int = 0
    states: int = 0
    tables: dict[GroupKind, list[int]] = field(default_factory=dict)
    kept: bool = False


class OutOfBlocks(Exception):
    """The pool of a test is too small."""


class PagedRun:
    """Runs steps of a model over sequences whose blocks lie at random places.

    Args:
        model: Anything that follows `llm_models.Model`, or an encoder-decoder.
        num_blocks: Size of the pool.
        seed: Of the order in which blocks are handed out.
    """

    def __init__(self, model: Model | EncoderDecoder, num_blocks: int = 160, seed: int = 0) -> None:
        self.model = model
        self._kinds = [GroupKind.of(cache) for cache in model.caches]
        self.groups = list(dict.fromkeys(self._kinds)) or [GroupKind(BLOCK_SIZE)]
        self._caches = [
            tuple(
                _garbage(shape, dtype, model.device)
                for shape, dtype in zip(
                    cache.shapes(num_blocks, kind.block_size), cache.dtypes(model.dtype), strict=True
                )
            )
            for cache, kind in zip(model.caches, self._kinds, strict=True)
        ]
        order = 1 + torch.randperm(num_blocks - 1, generator=torch.Generator().manual_seed(seed))
        self._free: list[int] = order.tolist()
        self._users: dict[int, int] = {}
        self._sequences: dict[str, Held] = {}

    def step(self, rows: Mapping[str, Sequence[int]]) -> dict[str, Tensor]:
        """Runs the next tokens of each row; returns the logits [n, V] of each row's tokens."""
        names = sorted(rows, key=lambda name: len(rows[name]) > 1)
        lengths = [len(rows[name]) for name in names]
        for name in names:
            self._sequences.setdefault(name, Held())
        metadata = {kind: self._metadata(kind, names, lengths) for kind in self.groups}
        ids = torch.tensor([token for name in names for token in rows[name]], device=self.model.device)
        given = [metadata[kind] for kind in self._kinds] or [metadata[self.groups[0]]]
        hidden = self.model.forward(ids, given[: len(self._kinds)] or given, self._caches)
        for name, length in zip(names, lengths, strict=True):
            self._sequences[name].computed += length
            if not self._sequences[name].kept:
                self._give_back_unneeded(self._sequences[name])
        scores = self.model.logits(hidden)
        return dict(zip(names, scores.split(lengths), strict=True))

    def open(self, inputs: Mapping[str, Tensor]) -> None:
        """Starts sequences of an encoder-decoder: runs the encoder and fills their cross caches."""
        states = self.model.encode(list(inputs.values()))
        kind, slots = next(kind for kind in self.groups if kind.is_cross), []
        for name, states_SE in zip(inputs, states, strict=True):
            held = self._sequences[name] = Held(states=len(states_SE))
            table = held.tables.setdefault(kind, [])
            self._grow(kind, table, held.states)
            size = kind.block_size
            slots += [table[place // size] * size + place % size for place in range(held.states)]
        count = sum(kind.is_cross for kind in self._kinds)
        self.model.write_cross(torch.cat(states), [torch.tensor(slots)] * count, self._caches)

    def greedy(self, name: str, prompt: Sequence[int], count: int) -> list[int]:
        """Generates `count` tokens for one sequence, alone."""
        produced: list[int] = []
        last = list(prompt)
        for _ in range(count):
            last = [int(self.step({name: last})[name][-1].argmax())]
            produced += last
        return produced

    def keep(self, name: str) -> None:
        """From now on nothing of the sequence is given back, as a prefix cache would hold it."""
        self._sequences.setdefault(name, Held()).kept = True

    def fork(self, name: str, source: str, length: int) -> None:
        """Starts a sequence from the first `length` tokens of a kept one, without computing them."""
        assert self._sequences[source].kept
        assert length % SHARED_UNIT == 0
        assert length <= self._sequences[source].computed
        tables = {}
        for kind in self.groups:
            shared = self._sequences[source].tables[kind][: length // kind.block_size]
            first = kind.first_needed(length)
            tables[kind] = [0] * min(first, len(shared)) + shared[first:]
            for block in shared[first:]:
                self._users[block] += 1
        self._sequences[name] = Held(computed=length, tables=tables)

    def preempt(self, name: str) -> None:
        """Takes all blocks of a sequence away; its tokens are computed anew with the next step."""
        for kind, table in self._sequences.pop(name).tables.items():
            for block in table:
                self._release(kind, block)

    def _metadata(self, kind: GroupKind, names: list[str], lengths: list[int]) -> AttentionMetadata:
        size = kind.block_size
        positions, slots, contexts, tables = [], [], [], []
        for name, length in zip(names, lengths, strict=True):
            sequence = self._sequences[name]
            mine = range(sequence.computed, sequence.computed + length)
            table = sequence.tables.setdefault(kind, [])
            positions += mine
            if kind.is_cross:
                contexts.append(sequence.states)
                tables.append(table)
                slots += [-1] * length
                continue
            self._grow(kind, table, mine.stop)
            slots += [table[p // size] * size + p % size for p in mine]
            contexts.append(mine.stop)
            tables.append(table)
        width = max(map(len, tables))
        return self._packed(
            kind, lengths, contexts, [t + [0] * (width - len(t)) for t in tables], slots, positions
        )

    def _packed(
        self,
        kind: GroupKind,
        lengths: list[int],
        contexts: list[int],
        tables: list[list[int]],
        slots: list[int],
        positions: list[int],
    ) -> AttentionMetadata:
        device = self.model.device
        ends = torch.tensor([0, *lengths]).cumsum(0)
        return AttentionMetadata(
            cu_query_lens=ends.to(device, torch.int32),
            context_lens=torch.tensor(contexts, dtype=torch.int32, device=device),
            block_tables=torch.tensor(tables, dtype=torch.int32, device=device),
            slot_mapping=torch.tensor(slots, device=device),
            positions=torch.tensor(positions, device=device),
            num_decodes=sum(length == 1 for length in lengths),
            max_query_len=max(lengths),
            max_context_len=max(contexts),
            block_size=kind.block_size,
        )

    def _grow(self, kind: GroupKind, table: list[int], count: int) -> None:
        while len(table) * kind.block_size < count:
            if not self._free:
                raise OutOfBlocks
            block = self._free.pop()
            self._users[block] = 1
            table.append(block)

    def _give_back_unneeded(self, sequence: Held) -> None:
        for kind, table in sequence.tables.items():
            for entry in range(min(kind.first_needed(sequence.computed), len(table))):
                self._release(kind, table[entry])
                table[entry] = 0

    def _release(self, kind: GroupKind, block: int) -> None:
        if block == 0:
            return
        self._users[block] -= 1
        if self._users[block]:
            return
        del self._users[block]
        for owner, tensors in zip(self._kinds, self._caches, strict=True):
            for tensor in tensors if owner == kind else ():
                tensor[block] = _garbage_value(tensor.dtype)
        self._free.insert(0, block)


def _garbage(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    return torch.full(shape, _garbage_value(dtype), dtype=dtype, device=device)


def _garbage_value(dtype: torch.dtype) -> float:
    return GARBAGE if dtype.is_floating_point else int(GARBAGE)
