"""Owns the exceptions of the package; the native module raises them by name."""


class KVCacheError(Exception):
    """Base of every error of this package. The cache is unchanged after any of them."""


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


class InvariantError(KVCacheError):
    """The cache's state contradicts itself, or native code panicked: an error of this package."""
