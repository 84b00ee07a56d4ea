"""Which sizes decode steps are captured for; knows nothing of devices or of models."""

from __future__ import annotations

from bisect import bisect_left
from typing import NamedTuple

# A step with more rows keeps the device busy for longer than its launches take the host.
LARGEST_ROWS = 512


class GraphKey(NamedTuple):
    """What a captured step is for.

    Attributes:
        rows: Rows with padding.
        draws: Whether the step draws its tokens as well; else it ends with the hidden states.
        filters: Whether the draw heeds top-k, top-p and min-p.
        shares: Whether attention reads shared prefixes once for all their rows.
    """

    rows: int
    draws: bool = True
    filters: bool = False
    shares: bool = False


class GraphBuckets:
    """The sizes to capture, and the choice among them.

    Args:
        max_rows: Most rows of a step.
    """

    def __init__(self, max_rows: int) -> None:
        self.rows = _row_buckets(min(max_rows, LARGEST_ROWS))

    def choose(self, num_rows: int) -> int | None:
        """The least bucket that holds so many rows; None: none does."""
        index = bisect_left(self.rows, num_rows)
        return self.rows[index] if index < len(self.rows) else None


def _row_buckets(largest: int) -> list[int]:
    """Ever wider gaps; padding stays below half of a step (at most 7 rows of 16).

    Gaps of 16 rows would gain nothing above 64: products of 224 rows take 2 % less than those of 256.
    """
    sizes = [1, 2, 4, *range(8, 32, 8), *range(32, 64, 16), *range(64, 513, 32)]
    return [size for size in sizes if size < largest] + [largest]
