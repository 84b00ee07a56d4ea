"""Which sizes decode steps are captured for; knows nothing of devices or of models."""

from __future__ import annotations

from bisect import bisect_left
from typing import NamedTuple

# A step with more rows keeps the device busy for longer than its launches take the host.
LARGEST_ROWS = 512
# Up to so many rows attention may split long contexts over processors, and how finely follows from the
# context bucket. With more rows the rows alone fill the device, and one bucket serves every context.
_SPLITTING_ROWS = 32
_SMALLEST_CONTEXT = 1024
_CONTEXT_FACTOR = 4


class GraphKey(NamedTuple):
    """Sizes of a captured step: rows with padding, and the upper bound of the contexts."""

    rows: int
    context: int


class GraphBuckets:
    """The sizes to capture, and the choice among them.

    Args:
        max_rows: Most rows of a step.
        max_context: Longest context in tokens.
    """

    def __init__(self, max_rows: int, max_context: int) -> None:
        self.rows = _row_buckets(min(max_rows, LARGEST_ROWS))
        self.contexts = _context_buckets(max_context)

    def choose(self, num_rows: int, max_context_len: int) -> GraphKey | None:
        """The least bucket that holds a step; None: none does."""
        row = bisect_left(self.rows, num_rows)
        context = bisect_left(self.contexts, max_context_len)
        if row == len(self.rows) or context == len(self.contexts):
            return None
        rows = self.rows[row]
        return GraphKey(rows, self.contexts[context if rows <= _SPLITTING_ROWS else -1])

    def __len__(self) -> int:
        """Number of different keys that `choose` can give."""
        split = sum(rows <= _SPLITTING_ROWS for rows in self.rows)
        return split * len(self.contexts) + len(self.rows) - split


def _row_buckets(largest: int) -> list[int]:
    """Ever wider gaps; padding stays below half of a step (at most 7 rows of 16)."""
    sizes = [1, 2, 4, *range(8, 32, 8), *range(32, 64, 16), *range(64, 513, 32)]
    return [size for size in sizes if size < largest] + [largest]


def _context_buckets(longest: int) -> list[int]:
    sizes = []
    size = _SMALLEST_CONTEXT
    while size < longest:
        sizes.append(size)
        size *= _CONTEXT_FACTOR
    return [*sizes, longest]
