"""Device tensors indexed by slot: token ids and block tables; knows nothing of sampling or of models.

The token table is the one place where a row's tokens live. The sampler writes each drawn token into it on the
device, so the next step reads it there before the host has seen it. Penalties and prompt logprobs read it
too, so nothing else has to be kept up to date by slot.

Each KV group has a block table for each slot. Groups of one block size are a family: their tables are one
tensor, so that a step reads all of them at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
import torch
from llm_scheduler import NewRow, Ragged
from numpy.typing import NDArray
from torch import Tensor

from llm_engine.worker.errors import PlanError
from llm_engine.worker.kv_groups import KVGroup

# Tables are as wide as a multiple of it, so that those of a family all begin at multiples of 16 bytes.
_WIDTH_UNIT = 4


@dataclass(frozen=True, slots=True)
class Growth:
    """The tables of one KV group that grow in a step, N of them.

    Attributes:
        rows: int64[N], ascending, the rows of the step.
        starts: int32[N], the length of each row's table before.
        counts: int32[N], how many entries each gets.
    """

    rows: NDArray[np.int64]
    starts: NDArray[np.int32]
    counts: NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class TableUpdate:
    """New entries of the block tables, to be written before a step. M entries.

    Attributes:
        positions: int64[M], flat indices into the tables.
        values: int32[M], group by group and row by row.
        growths: The tables that grow, for each KV group; empty where none does.
    """

    positions: NDArray[np.int64]
    values: NDArray[np.int32]
    growths: tuple[Growth, ...] = ()

    @property
    def most_per_row(self) -> int:
        """Most new entries of one table."""
        return max((int(growth.counts.max(initial=0)) for growth in self.growths), default=0)

    def spread(
        self, table_order: Sequence[int], columns: NDArray[np.int32], blocks: NDArray[np.int32]
    ) -> None:
        """Writes at most one entry a row to where the rows' own words stand.

        Args:
            table_order: The KV group of each row of `columns` and `blocks`.
            columns: int32[G, B], gets where a table grows; left alone elsewhere.
            blocks: int32[G, B], gets by which block.
        """
        if not self.growths:
            return
        ends = list(accumulate(len(growth.rows) for growth in self.growths))
        for table, group in enumerate(table_order):
            growth = self.growths[group]
            columns[table, growth.rows] = growth.starts
            blocks[table, growth.rows] = self.values[ends[group] - len(growth.rows) : ends[group]]


@dataclass(frozen=True, slots=True)
class TableFamily:
    """The block tables of groups with one block size.

    Attributes:
        block_size: Tokens of a block.
        has_slots: Whether each token has a place of its own in a block.
        groups: The groups.
        tables: int32[groups, S, blocks of the longest sequence] on the device.
    """

    block_size: int
    has_slots: bool
    groups: tuple[int, ...]
    tables: Tensor

    def width(self, max_context_len: int) -> int:
        """Entries of a table that contexts of so many tokens can reach, rounded up for the alignment."""
        return round_up(-(-max_context_len // self.block_size), _WIDTH_UNIT)


class SlotTables:
    """What the device knows of every slot.

    Args:
        num_slots: Number of slots, S.
        max_model_len: Longest sequence in tokens.
        groups: The KV groups, G.
        device: Where the tables live.

    Attributes:
        token_ids: int32[S, max_model_len + 1] on the device.
        families: The block tables on the device.
        flat_tables: int32, all entries of all families.
        num_blocks: int32[G, S] on the host: length of each block table.
        in_use: bool[S] on the host.
    """

    def __init__(
        self, num_slots: int, max_model_len: int, groups: Sequence[KVGroup], device: torch.device
    ) -> None:
        self.num_slots = num_slots
        # One column more than the longest sequence: a row that ended unseen by the scheduler may run one step
        # further.
        self.max_tokens = max_model_len + 1
        self._block_sizes = [group.block_size for group in groups]
        self.token_ids = torch.zeros((num_slots, self.max_tokens), dtype=torch.int32, device=device)
        self.num_blocks = np.zeros((len(groups), num_slots), np.int32)
        self.in_use = np.zeros(num_slots, np.bool_)
        self._max_blocks = [-(-self.max_tokens // size) for size in self._block_sizes]
        self._widths = [round_up(most, _WIDTH_UNIT) for most in self._max_blocks]
        self._starts = [0] * len(groups)
        self.flat_tables = torch.zeros(num_slots * sum(self._widths), dtype=torch.int32, device=device)
        self.families = self._make_families(groups)

    def _make_families(self, groups: Sequence[KVGroup]) -> tuple[TableFamily, ...]:
        members: dict[tuple[int, bool], list[int]] = {}
        for index, group in enumerate(groups):
            members.setdefault((group.block_size, group.has_slots), []).append(index)
        families, start = [], 0
        for (block_size, has_slots), indices in members.items():
            width = self._widths[indices[0]]
            for index in indices:
                self._starts[index] = start
                start += self.num_slots * width
            tables = self.flat_tables[self._starts[indices[0]] : start].view(-1, self.num_slots, width)
            families.append(TableFamily(block_size, has_slots, tuple(indices), tables))
        return tuple(families)

    @property
    def table_order(self) -> tuple[int, ...]:
        """The KV groups as their tables follow one another in the families."""
        return tuple(group for family in self.families for group in family.groups)

    def release(self, slots: NDArray[np.int32]) -> None:
        """Gives slots back; what the device holds of them is never read again."""
        self.in_use[slots] = False
        self.num_blocks[:, slots] = 0

    def admit(self, row: NewRow) -> None:
        """Takes a slot for a row; its tokens follow by `write_tokens`.

        Raises:
            PlanError: The slot does not exist or the row is longer than the table.
        """
        if not 0 <= row.slot < self.num_slots:
            raise PlanError(f"slot {row.slot} is outside 0 to {self.num_slots - 1}")
        if not 0 < len(row.token_ids) <= self.max_tokens:
            raise PlanError(
                f"request {row.request_id}: {len(row.token_ids)} tokens do not fit {self.max_tokens}"
            )
        self.in_use[row.slot] = True
        self.num_blocks[:, row.slot] = 0

    def write_tokens(self, slot: int, tokens: Tensor) -> None:
        """Writes a row's known tokens, int32[n] on the device, from position 0."""
        self.token_ids[slot, : len(tokens)].copy_(tokens)

    def append_blocks(self, slots: NDArray[np.int32], new_blocks: Sequence[Ragged]) -> TableUpdate:
        """Lengthens the block tables of distinct slots on the host.

        Blocks that no later token sees come as -1, and become 0: an entry that nobody reads must still be a
        block. The caller writes the update to `flat_tables`.

        Args:
            slots: int32[R].
            new_blocks: For each group, the blocks to append to each row's table.

        Raises:
            PlanError: Not one entry a group, or a table would grow beyond the longest sequence; nothing was
                changed.
        """
        if len(new_blocks) != len(self.num_blocks):
            raise PlanError(f"blocks of {len(new_blocks)} groups, not of {len(self.num_blocks)}")
        if not any(len(blocks.values) for blocks in new_blocks):
            return TableUpdate(np.empty(0, np.int64), np.empty(0, np.int32))
        growths = tuple(self._growth(group, slots, blocks) for group, blocks in enumerate(new_blocks))
        positions = []
        for group, (growth, blocks) in enumerate(zip(growths, new_blocks, strict=True)):
            grown = slots[growth.rows]
            self.num_blocks[group, grown] = growth.starts + growth.counts
            positions.append(self._places(group, grown, growth, blocks))
        values = [np.asarray(blocks.values, np.int32) for blocks in new_blocks]
        return TableUpdate(np.concatenate(positions), np.maximum(np.concatenate(values), 0), growths)

    def _growth(self, group: int, slots: NDArray[np.int32], blocks: Ragged) -> Growth:
        """The tables of a group that get blocks.

        Raises:
            PlanError: One would be longer than the longest sequence.
        """
        counts = blocks.offsets[1:] - blocks.offsets[:-1]
        rows = counts.nonzero()[0]
        growth = Growth(rows, self.num_blocks[group][slots[rows]], counts[rows])
        if np.count_nonzero(growth.starts + growth.counts > self._max_blocks[group]):
            raise PlanError(f"a block table would be longer than {self._max_blocks} blocks")
        return growth

    def _places(
        self, group: int, grown: NDArray[np.int32], growth: Growth, blocks: Ragged
    ) -> NDArray[np.int64]:
        """Flat indices of a group's new entries, for the slots of the rows that grow."""
        firsts = self._starts[group] + grown.astype(np.int64) * self._widths[group] + growth.starts
        if len(blocks.values) == len(grown):
            return firsts
        steps = np.arange(len(blocks.values), dtype=np.int64)
        return np.repeat(firsts - blocks.offsets[growth.rows], growth.counts) + steps

    def holds(self, slots: NDArray[np.int32], num_tokens: NDArray[np.int32]) -> bool:
        """Whether the block tables of slots reach so many tokens, in every group."""
        return not any(
            np.count_nonzero(num_tokens > num_blocks[slots] * block_size)
            for num_blocks, block_size in zip(self.num_blocks, self._block_sizes, strict=True)
        )


def round_up(number: int, unit: int) -> int:
    """The next multiple."""
    return -(-number // unit) * unit
