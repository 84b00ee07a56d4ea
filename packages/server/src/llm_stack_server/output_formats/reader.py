"""Text that arrives in pieces, read by generators that pause where more is needed.

A syntax is written as straight code: ``marker = yield from reader.until(...)``. It pauses by a bare ``yield``
until more text is there or the text has ended. What a primitive hands on never depends on where the pieces
were cut, as far as the joined text goes.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import TypeAlias, TypeVar

T = TypeVar("T")
Reading: TypeAlias = Generator[None, None, T]
Sink: TypeAlias = Callable[[str], None]


def drop(text: str) -> None:
    """The sink of what nobody needs."""


class Reader:
    """The text not read yet. ``ended`` says that nothing will follow it."""

    def __init__(self) -> None:
        self.ended = False
        self._text = ""
        self._at = 0
        self._record: list[str] | None = None

    def feed(self, text: str) -> None:
        """Append what arrived."""
        self._text = self._text[self._at :] + text
        self._at = 0

    def end(self) -> None:
        """Nothing follows."""
        self.ended = True

    # A record of what was read, for text that turns out not to be what its start promised.

    def start_record(self, already_read: str) -> None:
        """Keep what is read from here on, behind ``already_read``."""
        self._record = [already_read]

    def stop_record(self) -> str:
        """What was read since `start_record`; nothing is kept any more."""
        record, self._record = self._record or [], None
        return "".join(record)

    # Primitives

    def available(self, count: int = 1) -> Reading[bool]:
        """Wait for ``count`` characters; False where the text ends before."""
        while len(self._text) - self._at < count:
            if self.ended:
                return False
            yield
        return True

    def peek(self) -> Reading[str]:
        """The next character, left in place; "" at the end."""
        there = yield from self.available()
        return self._text[self._at] if there else ""

    def take(self, count: int = 1) -> str:
        """Read ``count`` characters that are known to be there."""
        text = self._text[self._at : self._at + count]
        self._at += len(text)
        if self._record is not None:
            self._record.append(text)
        return text

    def rest(self) -> str:
        """Read all that is there."""
        return self.take(len(self._text) - self._at)

    def pending(self) -> str:
        """What is there, left in place."""
        return self._text[self._at :]

    def accept(self, literal: str) -> Reading[bool]:
        """Read ``literal`` if it comes next; else nothing is read."""
        while True:
            there = self._text[self._at : self._at + len(literal)]
            if there == literal:
                self.take(len(literal))
                return True
            if self.ended or not literal.startswith(there):
                return False
            yield

    def skip_space(self) -> Reading[None]:
        """Read white space."""
        while True:
            here = self._at
            while here < len(self._text) and self._text[here].isspace():
                here += 1
            self.take(here - self._at)
            if here < len(self._text) or self.ended:
                return
            yield

    def until(self, markers: Sequence[str], sink: Sink) -> Reading[str | None]:
        """Read up to and over the first of ``markers``; ``sink`` gets the text before it once it is sure.

        Of markers that begin at one place the longest counts.

        Returns:
            The marker; None where the text ended without one.
        """
        while True:
            found = self._first(markers)
            if found is not None:
                at, marker = found
                if self.ended or not self._may_grow(markers, marker, at):
                    self._hand(at, sink)
                    self.take(len(marker))
                    return marker
                self._hand(at, sink)
            elif self.ended:
                self._hand(len(self._text), sink)
                return None
            else:
                self._hand(self._held_from(markers), sink)
            yield

    def while_in(self, allowed: Callable[[str], bool]) -> Reading[str]:
        """Read the characters that ``allowed`` takes."""
        taken: list[str] = []
        while (yield from self.available()):
            if not allowed(self._text[self._at]):
                break
            taken.append(self.take())
        return "".join(taken)

    def _hand(self, end: int, sink: Sink) -> None:
        if end > self._at:
            sink(self.take(end - self._at))

    def _first(self, markers: Sequence[str]) -> tuple[int, str] | None:
        places = [(at, -len(m), m) for m in markers if (at := self._text.find(m, self._at)) >= 0]
        if not places:
            return None
        at, _, marker = min(places)
        # A marker that began earlier may still be on its way.
        return (at, marker) if self.ended or at <= self._held_from(markers) else None

    def _may_grow(self, markers: Sequence[str], marker: str, at: int) -> bool:
        rest = self._text[at:]
        return any(len(m) > len(rest) and m.startswith(rest) and m != marker for m in markers)

    def _held_from(self, markers: Sequence[str]) -> int:
        """Where the longest end of the text begins that may be the beginning of a marker."""
        longest = max(map(len, markers), default=1) - 1
        for at in range(max(self._at, len(self._text) - longest), len(self._text)):
            tail = self._text[at:]
            if any(len(m) > len(tail) and m.startswith(tail) for m in markers):
                return at
        return len(self._text)
