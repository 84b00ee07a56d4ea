"""The rows of a step while it is being planned; knows nothing of which rows are chosen or why."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from llm_scheduler.plan import Int64, Ragged


@dataclass(frozen=True, slots=True, eq=False)
class PlannedRows:
    """Rows with their tokens and new blocks.

    Attributes:
        slots: int64[R].
        num_tokens: int64[R], at least 1.
        blocks: Per KV group, the blocks each row gained.
    """

    slots: Int64
    num_tokens: Int64
    blocks: tuple[Ragged, ...]

    @classmethod
    def without_blocks(cls, slots: Int64, num_tokens: Int64, num_groups: int) -> PlannedRows:
        """Make rows that gained no blocks."""
        return cls(slots, num_tokens, (Ragged.empty(len(slots)),) * num_groups)

    def __len__(self) -> int:
        return len(self.slots)

    @property
    def total_tokens(self) -> int:
        """Tokens over all rows."""
        return int(self.num_tokens.sum())

    def then(self, other: PlannedRows) -> PlannedRows:
        """Return the rows of both, this one's first."""
        if not len(other):
            return self
        return PlannedRows(
            np.concatenate([self.slots, other.slots]),
            np.concatenate([self.num_tokens, other.num_tokens]),
            tuple(mine.concat(theirs) for mine, theirs in zip(self.blocks, other.blocks, strict=True)),
        )

    def take(self, rows: Int64) -> PlannedRows:
        """Return the named rows, in that order."""
        blocks = tuple(ragged.take(rows) for ragged in self.blocks)
        return PlannedRows(self.slots[rows], self.num_tokens[rows], blocks)

    def single_tokens_first(self) -> PlannedRows:
        """Return the same rows, those with one token first; the order is kept otherwise."""
        is_chunk = self.num_tokens > 1
        if not (is_chunk[:-1] & ~is_chunk[1:]).any():
            return self
        return self.take(np.argsort(is_chunk, kind="stable"))
