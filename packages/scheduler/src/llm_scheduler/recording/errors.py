"""What can go wrong with a record; knows nothing of what raises it."""

from __future__ import annotations

from llm_scheduler.errors import SchedulerError


class RecordError(SchedulerError, ValueError):
    """A file is no record, or a line of it cannot be read.

    Attributes:
        path: The file.
        line: The line, from 1; 0 where the file as a whole is at fault.
        message: What is wrong.
    """

    def __init__(self, path: str, line: int, message: str) -> None:
        super().__init__(f"{path}:{line}: {message}" if line else f"{path}: {message}")
        self.path = path
        self.line = line
        self.message = message


class RecordingStopped(RuntimeWarning):
    """A record could not be written any further (a full disk); the scheduler goes on without it."""


class Unrecordable(TypeError):
    """A value has no form in a record."""
