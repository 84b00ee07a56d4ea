"""Reads the lines of a record; knows nothing of schedulers."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Self, cast

from llm_scheduler.recording.errors import RecordError
from llm_scheduler.recording.header import Header
from llm_scheduler.recording.values import Json


class RecordReader:
    """A record, read line by line.

    A record that ends in the middle of a line, as a killed process leaves it, is read up to there.

    Args:
        path: The file.

    Raises:
        RecordError: It cannot be read, or does not begin as a record.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = str(path)
        self.is_truncated = False
        self.num_lines = 0
        self._file = self._open()
        first = next(self._lines(), None)
        if first is None:
            raise RecordError(self.path, 0, "is empty, or cut off in its first line")
        try:
            self.header = Header.from_json(first)
        except Exception as error:
            raise RecordError(self.path, 1, f"no header: {error}") from error

    def calls(self) -> Iterator[tuple[int, dict[str, Json]]]:
        """Yield the number and the content of each line after the first, once.

        Raises:
            RecordError: A line is no JSON object.
        """
        for entry in self._lines():
            yield self.num_lines, entry

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _open(self) -> BinaryIO:
        try:
            if self.path.endswith(".gz"):
                return cast("BinaryIO", gzip.open(self.path, "rb"))
            return Path(self.path).open("rb")
        except OSError as error:
            raise RecordError(self.path, 0, str(error)) from error

    def _lines(self) -> Iterator[dict[str, Json]]:
        while line := self._next_line():
            self.num_lines += 1
            try:
                entry = json.loads(line)
            except ValueError as error:
                raise RecordError(self.path, self.num_lines, f"no JSON: {error}") from error
            if not isinstance(entry, dict):
                raise RecordError(self.path, self.num_lines, "expected an object")
            yield entry

    def _next_line(self) -> bytes:
        """Return the next whole line, or nothing at the end."""
        try:
            line = self._file.readline()
        except (EOFError, zlib.error):  # the compressed stream is cut off
            line = b"cut"
        except OSError as error:
            raise RecordError(self.path, self.num_lines + 1, str(error)) from error
        if line and not line.endswith(b"\n"):
            self.is_truncated = True
            return b""
        return line
