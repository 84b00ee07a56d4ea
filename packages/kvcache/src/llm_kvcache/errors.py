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

    Sequences and pins are as before; cached contents that it was to order may be lost.
    """


class InvariantError(KVCacheError):
    """The cache's state contradicts itself, or native code panicked: an error of this package."""
