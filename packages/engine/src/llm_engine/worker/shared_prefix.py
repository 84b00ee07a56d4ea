"""Finds the rows of a step whose block tables begin with the same blocks; knows nothing of devices or plans.

Rows that found the same prefix in the cache hold the same blocks of it. Attention may read such blocks once
for all of them, which pays where many rows share much. Blocks are found through hashes of all tokens up to
their end, so rows that agree in a block mostly agree in all before it: one column of the tables tells the
groups, and a comparison of the rows confirms them.

A step whose rows are those of the step before has the same groups, and nothing is looked for.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from llm_engine.worker.kv_groups import KVGroup
from llm_engine.worker.slot_tables import SlotTables, TableUpdate, round_up

MAX_GROUPS = 8
# The pass over the prefix and its parts take some 30 us a layer on an H200 (128 rows): in that time it reads
# about as many tokens of 8 KV heads of 128.
LEAST_SAVED_TOKENS = 32_768
# Segments of the packed arrays begin at multiples of 16 bytes.
_ALIGNED_WORDS = 4


@dataclass(frozen=True, slots=True)
class PrefixGroup:
    """Rows of a step, ascending, and the tokens they share, a multiple of the block size."""

    rows: NDArray[np.int64]
    num_tokens: int


@dataclass(frozen=True, slots=True)
class PrefixPlan:
    """The groups of a step's decode rows; the same object while nothing changes."""

    num_rows: int
    groups: tuple[PrefixGroup, ...]
    _packed: dict[int, NDArray[np.int32]] = field(default_factory=dict, compare=False, repr=False)

    def pack(self, padded_rows: int) -> NDArray[np.int32]:
        """The arrays of `llm_kernels.ops.SharedPrefix` for so many rows, as `layout` says. Read only."""
        if padded_rows not in self._packed:
            self._packed[padded_rows] = self._pack(padded_rows)
        return self._packed[padded_rows]

    def _pack(self, padded_rows: int) -> NDArray[np.int32]:
        packed = np.zeros(packed_words(padded_rows), np.int32)
        prefix_lens, member_rows, cu_members, group_lens = (packed[part] for part in layout(padded_rows))
        begin = 0
        for index, group in enumerate(self.groups):
            end = begin + len(group.rows)
            prefix_lens[group.rows] = group.num_tokens
            member_rows[begin:end] = group.rows
            cu_members[index + 1 :] = end
            group_lens[index] = group.num_tokens
            begin = end
        return packed


def layout(num_rows: int) -> tuple[slice, slice, slice, slice]:
    """Where prefix_lens, member_rows, cu_members and group_lens lie in the packed words."""
    width = round_up(num_rows, _ALIGNED_WORDS)
    groups = round_up(MAX_GROUPS + 1, _ALIGNED_WORDS)
    starts = (0, width, 2 * width, 2 * width + groups)
    sizes = (num_rows, num_rows, MAX_GROUPS + 1, MAX_GROUPS)
    first, second, third, fourth = (slice(at, at + size) for at, size in zip(starts, sizes, strict=True))
    return first, second, third, fourth


def packed_words(num_rows: int) -> int:
    """Length of the packed words."""
    return int(layout(num_rows)[3].stop)


class SharedPrefixes:
    """What the host must know of the block tables, and the groups found last.

    Args:
        tables: The slots' tables; of their shapes only.
        groups: The KV groups. Those that keep all tokens count; without any, nothing is ever found.
        least_saved_tokens: Tokens that a group must spare reading, counted over its rows.
    """

    def __init__(
        self, tables: SlotTables, groups: Sequence[KVGroup], *, least_saved_tokens: int = LEAST_SAVED_TOKENS
    ) -> None:
        self._least = least_saved_tokens
        self._mirror = np.zeros(0, np.int32)
        self._tables: NDArray[np.int32] | None = None
        self._block_size = 1
        self._slots = np.zeros(0, np.int32)
        self._lengths = np.zeros(0, np.int32)
        self._plan: PrefixPlan | None = None
        self._is_stale = True
        full = [index for index, group in enumerate(groups) if group.kind == "full"]
        for family in tables.families:
            # Layouts name such groups first, and all have one block size.
            if full and list(family.groups[: len(full)]) == full:
                self._mirror = np.zeros(tables.flat_tables.numel(), np.int32)
                begin = family.tables.storage_offset() - tables.flat_tables.storage_offset()
                view = self._mirror[begin : begin + family.tables.numel()].reshape(family.tables.shape)
                self._tables = view[: len(full)]
                self._block_size = family.block_size

    def note(self, update: TableUpdate, *, changed: bool) -> None:
        """Follows the tables.

        Args:
            update: Their new entries.
            changed: Whether slots were given or taken.
        """
        if self._tables is None:
            return
        if len(update.values):
            self._mirror[update.positions] = update.values
        self._is_stale |= changed

    def find(self, slots: NDArray[np.int32], context_lens: NDArray[np.int32]) -> PrefixPlan | None:
        """The groups among a step's decode rows; None where none is worth it.

        Args:
            slots: int32[R], distinct.
            context_lens: int32[R], tokens with the step's own.
        """
        if self._tables is None or len(slots) < 2:
            return None
        if self._is_stale or not np.array_equal(slots, self._slots) or (context_lens <= self._lengths).any():
            self._slots = slots.copy()
            self._lengths = np.zeros(len(slots), np.int32)
            # The step's own token is no part of a prefix.
            num_whole = (context_lens - 1) // self._block_size
            groups = tuple(self._search(self._tables, slots, num_whole))
            for group in groups:
                self._lengths[group.rows] = group.num_tokens
            self._plan = PrefixPlan(len(slots), groups) if groups else None
            self._is_stale = False
        return self._plan

    def _search(
        self, tables_GSB: NDArray[np.int32], slots: NDArray[np.int32], num_whole: NDArray[np.int32]
    ) -> Iterator[PrefixGroup]:
        """Takes the group that spares most, then the best of what is left, as long as it is worth it."""
        rows = np.flatnonzero(num_whole > 0)
        for _ in range(MAX_GROUPS):
            members = _best_members(tables_GSB[0], slots, rows, num_whole)
            if members is None:
                return
            width = int(num_whole[members].min())
            num_tokens = _common_blocks(tables_GSB[:, :, :width], slots[members]) * self._block_size
            if num_tokens * (len(members) - 1) < self._least:
                return
            yield PrefixGroup(members, num_tokens)
            rows = np.setdiff1d(rows, members, assume_unique=True)


def _best_members(
    tables_SB: NDArray[np.int32],
    slots: NDArray[np.int32],
    rows: NDArray[np.int64],
    num_whole: NDArray[np.int32],
) -> NDArray[np.int64] | None:
    """The rows that agree in a block so deep that they seem to spare most; None: no two agree."""
    best, members = 0, None
    depth = 1
    while len(rows := rows[num_whole[rows] >= depth]) > 1:
        column = tables_SB[slots[rows], depth - 1]
        value, count = _most_common(column)
        saved = depth * (count - 1)
        if saved == 0:
            break
        if saved > best:
            best, members = saved, rows[column == value]
        depth *= 2
    return members


def _most_common(values: NDArray[np.int32]) -> tuple[int, int]:
    """The most frequent value and how often it is there."""
    ordered = np.sort(values)
    begins = np.flatnonzero(np.diff(ordered, prepend=ordered[0] - 1))
    counts = np.diff(begins, append=len(values))
    best = int(counts.argmax())
    return int(ordered[begins[best]]), int(counts[best])


def _common_blocks(tables_GSB: NDArray[np.int32], slots: NDArray[np.int32]) -> int:
    """Blocks at the beginning in which the tables of slots agree, in every KV group."""
    differs = (tables_GSB[:, slots[1:]] != tables_GSB[:, slots[:1]]).any(axis=(0, 1))
    return int(differs.argmax()) if differs.any() else len(differs)
