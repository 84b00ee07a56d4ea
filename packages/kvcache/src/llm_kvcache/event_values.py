"""Owns cache events as values; `events` says what they mean together."""

from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """Blocks of one chain that can now be found in a tier. Storing what is there already changes nothing.

    Attributes:
        keys: Their hashes, 16 bytes each, in the order of the chain: each is the parent of the next. At
            least one.
        parent: The parent of the first block; None where it starts its sequence, or is not told (no tokens).
        token_ids: The tokens of all the blocks, `len(keys) * block_size` of them; or none, where they are
            not told.
        block_size: Tokens of a block.
        group: The KV group of the blocks.
        tier: Where they are: "device", "host", …
        lora: Content version of the adapter, if the blocks depend on one.
        has_extra_keys: Whether the blocks depend on more than tokens and adapter (a salt, media).
    """

    keys: tuple[bytes, ...]
    block_size: int
    tier: str
    group: int = 0
    parent: bytes | None = None
    token_ids: tuple[int, ...] = ()
    lora: str | None = None
    has_extra_keys: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Removed:
    """Blocks cannot be found in a tier any more. Removing what is not there changes nothing.

    Attributes:
        keys: Their hashes, at least one, in no order.
        tier: Where they were.
        group: Their KV group.
    """

    keys: tuple[bytes, ...]
    tier: str
    group: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Moved:
    """Blocks can now be found in another tier.

    Attributes:
        keys: Their hashes, at least one, in no order.
        source: Where they were read.
        to: Where they are now.
        group: Their KV group.
        is_copy: Whether `source` still has them.
    """

    keys: tuple[bytes, ...]
    source: str
    to: str
    group: int = 0
    is_copy: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Cleared:
    """Nothing can be found any more.

    Attributes:
        tier: In which tier; None for all.
    """

    tier: str | None = None


Event: TypeAlias = Stored | Removed | Moved | Cleared


@dataclass(frozen=True, slots=True, kw_only=True)
class EventBatch:
    """Consecutive events of one cache, or a snapshot.

    Attributes:
        epoch: Which life of the cache this is, 0 to 2**64 - 1; later lives have larger numbers.
        seq: Number of the first event; for a snapshot, of the first event after it.
        events: Oldest first.
        is_snapshot: Whether the events rebuild the state from nothing; they then have no numbers.
    """

    epoch: int
    seq: int
    events: tuple[Event, ...]
    is_snapshot: bool = False

    @property
    def next_seq(self) -> int:
        """Number of the event that comes after this batch."""
        return self.seq + (0 if self.is_snapshot else len(self.events))
