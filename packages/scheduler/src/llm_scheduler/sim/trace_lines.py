"""Reads text files line by line with typed errors; knows nothing of what the lines say."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from llm_scheduler.sim.errors import TraceError


def numbered_lines(path: str | Path) -> Iterator[tuple[int, str]]:
    """Yield the lines that are not blank, with their numbers from 1.

    Raises:
        TraceError: The file cannot be read, or holds no line.
    """
    empty = True
    try:
        with Path(path).open(encoding="utf-8-sig") as file:
            for number, line in enumerate(file, 1):
                if line.strip():
                    empty = False
                    yield number, line
    except (OSError, UnicodeDecodeError) as error:
        raise TraceError(str(path), 0, "", str(error)) from error
    if empty:
        raise TraceError(str(path), 0, "", "holds no line")


class CsvRow:
    """A row of a CSV file with a header, whose columns are checked as they are asked for."""

    def __init__(self, path: str, number: int, columns: Mapping[str, str]) -> None:
        self._path = path
        self._number = number
        self._columns = columns

    def error(self, column: str, message: str) -> TraceError:
        """Make an error for a column of this row."""
        return TraceError(self._path, self._number, column, message)

    def text(self, column: str) -> str:
        """Return a column as it stands."""
        return self._columns[column]

    def count(self, column: str) -> int:
        """Return a column as an integer of at least 0, also where it is written as 12.0."""
        value = self.number(column)
        if not value.is_integer() or not 0 <= value < 2**31:
            raise self.error(column, f"expected an integer, at least 0, got {self._columns[column]!r}")
        return int(value)

    def number(self, column: str) -> float:
        """Return a column as a finite number."""
        try:
            value = float(self._columns[column])
        except ValueError:
            value = math.nan
        if not math.isfinite(value):
            raise self.error(column, f"expected a number, got {self._columns[column]!r}")
        return value


def csv_rows(path: str | Path, columns: Sequence[str]) -> Iterator[CsvRow]:
    """Yield the rows of a CSV file whose header has these columns, others aside.

    Raises:
        TraceError: The file cannot be read, a column is missing, or a row is short.
    """
    lines = numbered_lines(path)
    number, header = next(lines)
    names = [name.strip() for name in next(csv.reader([header]))]
    for column in columns:
        if column not in names:
            raise TraceError(str(path), number, column, f"no such column; there are {', '.join(names)}")
    for number, line in lines:
        values = next(csv.reader([line]))
        if len(values) != len(names):
            raise TraceError(str(path), number, "", f"{len(values)} columns, the header has {len(names)}")
        yield CsvRow(str(path), number, dict(zip(names, values, strict=True)))
