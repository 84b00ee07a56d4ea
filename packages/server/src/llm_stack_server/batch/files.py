"""The files of a batch: bounded reading, whole lines out, what an interrupted run has done. Runs nothing."""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import BinaryIO, Self

from llm_stack_server.batch.lines import BadLine, BatchRequest, line_id, read_line
from llm_stack_server.errors import StartupError


class Claim(Enum):
    """What is known of a line's name."""

    NEW = "new"
    DONE = "done"
    DUPLICATE = "duplicate"


class Ledger:
    """The names that were used and answered. On disk past a few megabytes, so that memory stays flat."""

    def __init__(self) -> None:
        # "" is a temporary file of sqlite's, which it deletes itself.
        self._base = sqlite3.connect("", isolation_level=None)
        self._base.execute("PRAGMA journal_mode=OFF")
        self._base.execute("PRAGMA synchronous=OFF")
        self._base.execute("CREATE TABLE names (name TEXT PRIMARY KEY, line INTEGER) WITHOUT ROWID")
        self._base.execute("CREATE TABLE nameless (id TEXT PRIMARY KEY) WITHOUT ROWID")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._base.close()

    def add_answer(self, name: str | None, answer_id: str) -> None:
        """The output holds an answer to the line of this name, or without one."""
        if name is None:
            self._base.execute("INSERT OR IGNORE INTO nameless VALUES (?)", (answer_id,))
        else:
            self._base.execute("INSERT OR IGNORE INTO names VALUES (?, 0)", (name,))

    def claim(self, name: str, number: int) -> Claim:
        """Line ``number`` of the input bears ``name``: is it new, answered in an earlier run, or taken?"""
        found = self._base.execute("SELECT line FROM names WHERE name = ?", (name,)).fetchone()
        if found is None:
            self._base.execute("INSERT INTO names VALUES (?, ?)", (name, number))
            return Claim.NEW
        if found[0] == 0:
            self._base.execute("UPDATE names SET line = ? WHERE name = ?", (number, name))
            return Claim.DONE
        return Claim.DUPLICATE

    def is_told(self, number: int) -> bool:
        """Whether the output holds an error line without name for input line ``number``."""
        found = self._base.execute("SELECT 1 FROM nameless WHERE id = ?", (line_id(number),)).fetchone()
        return found is not None


class InputFile:
    """The lines of a batch, read as they are wanted.

    Raises:
        StartupError: the file cannot be read.
    """

    def __init__(self, path: Path, max_line_bytes: int) -> None:
        try:
            self._file: BinaryIO = path.open("rb")
            self.size = os.fstat(self._file.fileno()).st_size
        except OSError as error:
            raise StartupError(f"input: {error}") from None
        self._limit = max_line_bytes
        self.bytes_read = 0

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def lines(self) -> Iterator[BatchRequest | BadLine]:
        """All lines but blank ones. A line above the limit is a bad one, and is never held whole."""
        number = 0
        while raw := self._file.readline(self._limit + 1):
            number += 1
            self.bytes_read += len(raw)
            if len(raw) > self._limit and not raw.endswith(b"\n"):
                self._skip_line()
                message = f"the line is longer than the limit of {self._limit} bytes"
                yield BadLine(number, None, "line_too_large", None, message)
            elif raw.strip():
                yield read_line(number, raw)

    def _skip_line(self) -> None:
        while raw := self._file.readline(self._limit + 1):
            self.bytes_read += len(raw)
            if raw.endswith(b"\n"):
                return


class OutputFile:
    """The answers, a whole line at a time."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file

    @classmethod
    def create(cls, path: Path, *, overwrite: bool) -> OutputFile:
        """A new file.

        Raises:
            StartupError: there is one that holds something, or it cannot be written.
        """
        try:
            if not overwrite and path.exists() and path.stat().st_size:
                raise StartupError(f"output: {path} is not empty; give --resume or --overwrite")
            return cls(path.open("wb"))
        except OSError as error:
            raise StartupError(f"output: {error}") from None

    @classmethod
    def resume(cls, path: Path, ledger: Ledger) -> tuple[OutputFile, int]:
        """The file of an earlier run, what it answered told to ``ledger``, and how many answers are errors.

        A last line that was cut short is taken away: its request runs again.

        Raises:
            StartupError: the file cannot be read or written, or is not the output of a batch.
        """
        try:
            file = path.open("r+b") if path.exists() else path.open("w+b")
        except OSError as error:
            raise StartupError(f"output: {error}") from None
        try:
            end, failed = _read_answers(file, ledger)
            file.truncate(end)
            file.seek(end)
        except OSError as error:
            file.close()
            raise StartupError(f"output: {error}") from None
        except BaseException:
            file.close()
            raise
        return cls(file), failed

    def write(self, line: str) -> None:
        """Add a line; it is the operating system's when this returns."""
        self._file.write(line.encode() + b"\n")
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def _read_answers(file: BinaryIO, ledger: Ledger) -> tuple[int, int]:
    """Where the last whole line ends, and how many answers are errors."""
    end = failed = 0
    for number, raw in enumerate(file, start=1):
        if not raw.endswith(b"\n"):
            break
        try:
            answer = json.loads(raw)
            name, answer_id, response = answer["custom_id"], answer["id"], answer["response"]
            failed += response is None or not 200 <= response["status_code"] < 300
            if not isinstance(answer_id, str) or not (name is None or isinstance(name, str)):
                raise TypeError("a name must be a string")
        except (ValueError, KeyError, TypeError):
            raise StartupError(
                f"output: line {number} is no answer of a batch; nothing was changed"
            ) from None
        ledger.add_answer(name, answer_id)
        end += len(raw)
    return end, failed
