"""Owns the values that a tier index takes and returns; knows no index."""

from dataclasses import dataclass
from typing import Literal, TypeAlias

from llm_kvcache.arguments import integer
from llm_kvcache.errors import InvalidArgument

Outcome: TypeAlias = Literal["stored", "loaded", "copied", "moved", "failed"]
"""How a transfer ended.

"stored": contents from outside are resident in the destination. "loaded": contents went outside. "copied":
the destination is resident, the source was not dropped. "moved": the destination is resident, the source
was dropped. "failed": nothing arrived, or what arrived is void because an end was lost or removed meanwhile.
"""


@dataclass(frozen=True, slots=True)
class Tier:
    """What a tier is made from.

    Attributes:
        name: Its name, unique in the index.
        capacity: Blocks that it holds, 1 to 2**32 - 2; None where it never fills.
    """

    name: str
    capacity: int | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise InvalidArgument("name", self.name, "must be a str that is not empty")
        if self.capacity is not None and not 1 <= integer("capacity", self.capacity) < 2**32 - 1:
            raise InvalidArgument("capacity", self.capacity, "must be 1 to 2**32 - 2, or None")


@dataclass(frozen=True, slots=True)
class Place:
    """A slot of a tier.

    Attributes:
        tier: Name of the tier.
        slot: Index of the slot in it.
    """

    tier: str
    slot: int


@dataclass(frozen=True, slots=True)
class Transfer:
    """A copy of one block for a connector to make.

    Attributes:
        id: Its name, for `complete` and `fail`; never used twice in an index.
        key: The block, 16 bytes.
        source: The slot to read; None where the contents come from outside the index.
        destination: The slot to write; None where the contents go outside the index.
    """

    id: int
    key: bytes
    source: Place | None
    destination: Place | None


@dataclass(frozen=True, slots=True)
class Begun:
    """Transfers into a tier that began.

    Attributes:
        transfers: One for each key that the tier did not have, in the order of the keys.
        evicted: Blocks that were dropped from the tier to make room.
    """

    transfers: tuple[Transfer, ...]
    evicted: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class Inserted:
    """A new entry.

    Attributes:
        place: Its slot.
        evicted: The block that was dropped from the tier to make room, if one was.
    """

    place: Place
    evicted: bytes | None


@dataclass(frozen=True, slots=True)
class Ended:
    """A transfer that ended.

    Attributes:
        transfer: The transfer.
        outcome: What came of it.
    """

    transfer: Transfer
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class Entry:
    """The contents of one block in one tier.

    Attributes:
        place: Where they are, or will be.
        is_resident: Whether they are there; else a transfer writes them.
        readers: Transfers in flight that read them.
        pins: Pins on them.
    """

    place: Place
    is_resident: bool
    readers: int
    pins: int


@dataclass(frozen=True, slots=True)
class TierStats:
    """Counters of a tier. `resident + arriving + leaving + free` is its capacity.

    Attributes:
        name: Its name.
        capacity: Blocks that it holds; None where it never fills.
        is_lost: Whether it was lost and not restored.
        resident: Entries whose contents are there.
        arriving: Entries that a transfer writes.
        leaving: Slots of dropped entries that wait for their transfers to end.
        free: Slots that hold nothing.
        idle: Resident entries that nobody reads or pins: these can be evicted.
        pinned: Resident entries with a pin.
        evictions: Entries evicted to make room, since the index was made.
    """

    name: str
    capacity: int | None
    is_lost: bool
    resident: int
    arriving: int
    leaving: int
    free: int
    idle: int
    pinned: int
    evictions: int
