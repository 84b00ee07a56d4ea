"""Owns the values that a cache returns."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

COPY, STORE, LOAD = 0, 1, 2
"""Kinds of transfers: device to device, device to host, host to device."""


@dataclass(frozen=True, slots=True, eq=False)
class Growth:
    """What `KVCache.grow_many` granted to each of its R rows, in each of the cache's G groups.

    Attributes:
        ok: bool `[R]`, whether the row was granted. A refused row is unchanged.
        new_blocks: int32 `[M]`, blocks appended to the rows' block tables, row after row, group after group.
        offsets: int32 `[G * R + 1]`; row `i` got `new_blocks[offsets[g * R + i]:offsets[g * R + i + 1]]` in
            group `g`.
        replaced: int32 `[C, 4]` of (row, group, position, block): block table entries that changed because
            the row's partial block was shared (see `KVCache.fork`). Empty unless sequences were forked.
    """

    ok: NDArray[np.bool_]
    new_blocks: NDArray[np.int32]
    offsets: NDArray[np.int32]
    replaced: NDArray[np.int32]

    def group(self, group: int) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """Returns blocks int32 `[M_g]` and offsets int32 `[R + 1]` of one group."""
        rows = len(self.ok)
        offsets = self.offsets[group * rows : (group + 1) * rows + 1]
        return self.new_blocks[offsets[0] : offsets[-1]], offsets - offsets[0]


@dataclass(frozen=True, slots=True, eq=False)
class Transfers:
    """Contents to copy, one after the other, before the next step writes anything.

    Attributes:
        batch: For `KVCache.finish_transfers`, or None where nothing waits for the end.
        moves: int32 `[m, 3]` of (kind, source, destination): `COPY` from block to block, `STORE` from a block
            to a slot of the host tier, `LOAD` from a slot to a block.
    """

    batch: int | None
    moves: NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Pin:
    """A hold on cached blocks.

    Attributes:
        id: For `KVCache.unpin`.
        num_tokens: Leading tokens of the sequence that it keeps.
    """

    id: int
    num_tokens: int


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
        evictions: Blocks whose contents were given up, to new owners or for a quota, since the cache was
            made.
        sequences: Open sequences.
        pinned: References that pins hold; a block pinned twice counts twice.
        host_blocks: Blocks of the host tier, 0 without one.
        host_used: Blocks of it that hold contents or await them.
        host_hits: Tokens of `hits` that were found in the host tier.
    """

    num_blocks: int
    free: int
    cached: int
    used: int
    queries: int
    hits: int
    evictions: int
    sequences: int
    pinned: int
    host_blocks: int
    host_used: int
    host_hits: int
