"""Owns the exceptions of the package; the native module raises them by name."""


class KVCacheError(Exception):
    """Base of every error of this package. Unless said otherwise the cache is unchanged after it."""


class UnknownSequence(KVCacheError, LookupError):
    """No open sequence has this id: it was never given out, or was released.

    Attributes:
        seq: The id that was asked for.
    """

    def __init__(self, seq: int) -> None:
        super().__init__(seq)
        self.seq = seq

    def __str__(self) -> str:
        return f"no open sequence has the id {self.seq}"


class InvalidArgument(KVCacheError, ValueError):
    """An argument is outside what it may be.

    Attributes:
        field: Name of the argument.
        value: Its value, or that of the offending element.
        reason: What it should have been.
    """

    def __init__(self, field: str, value: object, reason: str = "is invalid") -> None:
        super().__init__(field, value, reason)
        self.field = field
        self.value = value
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.field} = {self.value!r}: {self.reason}"


class UnknownPin(KVCacheError, LookupError):
    """No pin has this id: it was never given out, was lifted, or ran out.

    Attributes:
        pin: The id that was asked for.
    """

    def __init__(self, pin: int) -> None:
        super().__init__(pin)
        self.pin = pin

    def __str__(self) -> str:
        return f"no pin has the id {self.pin}"


class PinQuotaExceeded(KVCacheError):
    """A pin would hold more blocks than its tenant, or all pins together, may.

    Attributes:
        wanted: Blocks that the pin would have added.
        room: Blocks that may still be pinned.
    """

    def __init__(self, wanted: int, room: int) -> None:
        super().__init__(wanted, room)
        self.wanted = wanted
        self.room = room

    def __str__(self) -> str:
        return f"{self.wanted} blocks more would be pinned, {self.room} may be"


class PolicyError(KVCacheError):
    """An eviction policy failed, or named a block that is not cached.

    Sequences and pins are as before; cached contents that it was to order may be lost. A `release` that
    raises it has closed the sequence, and `commit_many` stops at the row that met it.
    """


class UnknownTransfer(KVCacheError, LookupError):
    """No transfer in flight has this id: it never began, or has ended.

    Attributes:
        transfer: The id that was asked for.
    """

    def __init__(self, transfer: int) -> None:
        super().__init__(transfer)
        self.transfer = transfer

    def __str__(self) -> str:
        return f"no transfer in flight has the id {self.transfer}"


class NotResident(KVCacheError, LookupError):
    """A block's contents are not where they are asked for.

    Attributes:
        key: The block.
        tier: Where it was looked for; None for every tier that would do.
    """

    def __init__(self, key: bytes, tier: str | None) -> None:
        super().__init__(key, tier)
        self.key = key
        self.tier = tier

    def __str__(self) -> str:
        where = "any tier that would do" if self.tier is None else f"tier {self.tier!r}"
        return f"block {self.key.hex()} is not resident in {where}"


class NoRoom(KVCacheError):
    """A tier has too few slots that are free or could be freed: the others are pinned or held by transfers.

    Attributes:
        tier: The tier.
        needed: Slots that the call needs.
        available: Slots that are free or could be freed.
    """

    def __init__(self, tier: str, needed: int, available: int) -> None:
        super().__init__(tier, needed, available)
        self.tier = tier
        self.needed = needed
        self.available = available

    def __str__(self) -> str:
        return f"tier {self.tier!r} has room for {self.available} blocks, not for {self.needed}"


class TierLost(KVCacheError):
    """A tier went away and takes nothing in until it is restored.

    Attributes:
        tier: The tier.
    """

    def __init__(self, tier: str) -> None:
        super().__init__(tier)
        self.tier = tier

    def __str__(self) -> str:
        return f"tier {self.tier!r} was lost"


class EventGap(KVCacheError):
    """Events are missing: a follower must start again from a snapshot.

    Attributes:
        wanted: Number of the first event that the follower lacks.
        oldest: Number of the first event that there is.
        next: Number that the next event will get.
    """

    def __init__(self, wanted: int, oldest: int, next: int) -> None:  # noqa: A002 (the name of the field)
        super().__init__(wanted, oldest, next)
        self.wanted = wanted
        self.oldest = oldest
        self.next = next

    def __str__(self) -> str:
        there = f"{self.oldest} to {self.next} (exclusive)"
        return f"events from {self.wanted} on are needed, but those there are {there}"


class EventsDisabled(KVCacheError):
    """The event log keeps no events."""


class WireError(KVCacheError, ValueError):
    """Bytes are no batch of events, or one of another version of the format."""


class InvariantError(KVCacheError):
    """The cache's state contradicts itself, or native code panicked: an error of this package."""
