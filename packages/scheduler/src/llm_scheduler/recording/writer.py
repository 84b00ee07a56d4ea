"""Writes the lines of a record and never raises once it is open; knows nothing of what they say."""

from __future__ import annotations

import gzip
import json
import logging
import time
import warnings
import weakref
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, cast

from llm_scheduler.recording.errors import RecordingStopped

_LOG = logging.getLogger(__name__)
_BUFFER_BYTES = 1 << 20
_FLUSH_EVERY_S = 1.0


class RecordWriter:
    """A file of JSON lines, compressed where its name ends in ``.gz``.

    Lines are kept in a buffer of at most 1 MiB and reach the file at least once a second of writing, when
    ``flush`` is called, and at the end of the interpreter. When the file cannot be written any more, one
    ``RecordingStopped`` is warned of, and further lines are dropped.

    Args:
        path: The file; one that exists is replaced.

    Raises:
        OSError: It cannot be opened.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._file: BinaryIO | None = self._open()
        self._flushed_at_s = time.monotonic()
        self._is_flushed = True
        self._finalizer = weakref.finalize(self, _close_quietly, self._file)

    @property
    def is_open(self) -> bool:
        """Whether lines are still written."""
        return self._file is not None

    def write(self, entry: Mapping[str, object]) -> None:
        """Append a line."""
        if self._file is None:
            return
        line = json.dumps(entry, separators=(",", ":")).encode() + b"\n"
        try:
            self._file.write(line)
        except OSError as error:
            self._stop(error)
            return
        self._is_flushed = False
        if time.monotonic() - self._flushed_at_s >= _FLUSH_EVERY_S:
            self.flush()

    def flush(self) -> None:
        """Hand to the system what is still in the buffer."""
        if self._file is None or self._is_flushed:
            return
        try:
            self._file.flush()
        except OSError as error:
            self._stop(error)
        self._is_flushed = True
        self._flushed_at_s = time.monotonic()

    def close(self) -> None:
        """Write what is left and close the file. Safe to call twice."""
        file, self._file = self._file, None
        if file is None:
            return
        self._finalizer.detach()
        try:
            file.close()
        except OSError as error:
            self._warn(error)

    def _open(self) -> BinaryIO:
        if self.path.suffix == ".gz":
            return cast("BinaryIO", gzip.open(self.path, "wb", compresslevel=1))
        return self.path.open("wb", buffering=_BUFFER_BYTES)

    def _stop(self, error: OSError) -> None:
        self._finalizer()
        self._file = None
        self._warn(error)

    def _warn(self, error: OSError) -> None:
        message = f"recording to {self.path} stopped: {error}"
        try:
            warnings.warn(message, RecordingStopped, stacklevel=2)
        except RecordingStopped:  # a filter made it an error: the engine must not end for it
            _LOG.warning(message)


def _close_quietly(file: BinaryIO) -> None:
    with suppress(OSError):
        file.close()
