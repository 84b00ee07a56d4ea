"""The errors a worker raises; knows nothing of HTTP."""

from __future__ import annotations


class WorkerError(Exception):
    """Base of all errors of the worker."""


class InvalidOption(WorkerError):
    """A worker option has a value that cannot work.

    Attributes:
        field: Name of the option.
    """

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}")
        self.field = field


class KVCacheTooSmall(WorkerError):
    """The memory for the KV cache does not hold one request of `max_model_len` tokens.

    Attributes:
        available_bytes: What there is.
        required_bytes: What one longest request takes.
    """

    def __init__(self, available_bytes: int, required_bytes: int, advice: str) -> None:
        super().__init__(
            f"the KV cache would get {available_bytes / 2**20:.1f} MiB, but one request of max_model_len "
            f"tokens needs {required_bytes / 2**20:.1f} MiB: {advice}"
        )
        self.available_bytes = available_bytes
        self.required_bytes = required_bytes


class PlanError(WorkerError):
    """A step plan does not fit the worker's state (a slot out of range, a row longer than its table)."""
