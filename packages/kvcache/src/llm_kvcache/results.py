"""Owns the values that a cache returns."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, eq=False)
class Growth:
    """What `KVCache.grow_many` granted to each of its R rows.

    Attributes:
        ok: bool `[R]`, whether the row was granted. A refused row is unchanged.
        new_blocks: int32 `[M]`, blocks appended to the rows' block tables, row after row.
        offsets: int32 `[R + 1]`; row `i` got `new_blocks[offsets[i]:offsets[i + 1]]`.
        replaced: int32 `[C, 3]` of (row, position, block): block table entries that changed because the row's
            partial block was shared (see `KVCache.fork`). Empty unless sequences were forked.
    """

    ok: NDArray[np.bool_]
    new_blocks: NDArray[np.int32]
    offsets: NDArray[np.int32]
    replaced: NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Stats:
    """Counters of a cache. `free + cached + used == num_blocks`, and `free + cached` can be handed out.

    Attributes:
        num_blocks: Blocks of the pool.
        free: Blocks that hold nothing.
        cached: Blocks without an owner whose contents can be found again; evicted when none is free.
        used: Blocks that a sequence holds.
        queries: Tokens looked up by `match`, since the cache was made.
        hits: Tokens found by `match`, since the cache was made.
        evictions: Cached blocks given to new owners, since the cache was made.
        sequences: Open sequences.
    """

    num_blocks: int
    free: int
    cached: int
    used: int
    queries: int
    hits: int
    evictions: int
    sequences: int
