"""The protocols of executors, workers and codecs; knows nothing of processes, sockets or models."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, TypeVar

P_contra = TypeVar("P_contra", contravariant=True)
R_co = TypeVar("R_co", covariant=True)
T = TypeVar("T")

API_VERSION = 1


class PendingResult(Protocol[R_co]):
    """A result that may not be there yet."""

    def done(self) -> bool:
        """Whether `result` would answer at once."""
        ...

    def result(self) -> R_co:
        """Waits for the result; the same value, or the same error, each time.

        Raises:
            StepFailed: The step raised; the executor lives on.
            WorkerDied: A rank is gone; the executor is done for.
        """
        ...


class ReadyResult:
    """A result that is there.

    Args:
        value: The result.
    """

    __slots__ = ("_value",)

    def __init__(self, value: Any) -> None:  # noqa: ANN401  (the value of any worker)
        self._value = value

    def done(self) -> bool:
        """True."""
        return True

    def result(self) -> Any:  # noqa: ANN401
        """The value."""
        return self._value


class FailedResult:
    """A result that will never come.

    Args:
        error: What `result` raises.
    """

    __slots__ = ("_error",)

    def __init__(self, error: Exception) -> None:
        self._error = error

    def done(self) -> bool:
        """True."""
        return True

    def result(self) -> Any:  # noqa: ANN401
        """Raises the error."""
        raise self._error


class Worker(Protocol[P_contra, R_co]):
    """What runs on every rank: built there by `factory(mesh, **kwargs)`; other methods are called by name."""

    def execute(self, plan: P_contra) -> PendingResult[R_co]:
        """Starts a plan; may return before the device is done. Plans come in the order of `submit`."""
        ...


class Codec(Protocol):
    """Turns plans, results, arguments and return values into bytes and back. Both ends build their own.

    Named by import path ("module:attribute"); the attribute is called without arguments on each side.
    """

    def encode(self, value: Any) -> Sequence[bytes | bytearray | memoryview]:  # noqa: ANN401
        """Encodes a value into frames; raises `CodecError` for what it does not know."""
        ...

    def decode(self, frames: Sequence[memoryview]) -> Any:  # noqa: ANN401
        """The inverse of `encode`; the value may point into the frames."""
        ...


class Executor(Protocol):
    """Runs one worker per rank. Calls come from one thread at a time."""

    @property
    def mesh_size(self) -> int:
        """Number of ranks."""
        ...

    def start(self) -> None:
        """Builds the workers; raises `StartFailed` with nothing left behind."""
        ...

    def call(self, method: str, *args: Any) -> list[Any]:  # noqa: ANN401
        """Calls a method on every rank, after all plans submitted before.

        Returns:
            The return values by rank.

        Raises:
            CallFailed: It raised on some rank; the executor lives on.
            WorkerDied: A rank is gone.
        """
        ...

    def submit(self, plan: Any) -> PendingResult[Any]:  # noqa: ANN401
        """Starts a plan on every rank; results come in order, from rank 0."""
        ...

    def check(self) -> None:
        """Raises `WorkerDied` if a rank is known to be gone; costs no message."""
        ...

    def shutdown(self) -> None:
        """Ends all workers; may be called twice."""
        ...
