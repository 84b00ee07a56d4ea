"""Owns where the seconds of a start go: spans on a clock that processes share, and their table.

Knows nothing of what is started. Spans may lie inside one another and come from several processes of one
machine; the table is a tree by time in which every second is counted once, so it adds up to the wall time.
"""

import contextlib
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

# Linux counts a process's start on this clock, and every process of the machine reads the same.
_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
# /proc counts in ticks of 10 ms.
_TICK_SLACK_S = 0.02


def now_s() -> float:
    """Seconds on the clock of all spans."""
    return time.clock_gettime(_CLOCK)


IMPORTED_S = now_s()
"""When this process first imported `llm_engine`."""


class Span(msgspec.Struct, frozen=True, array_like=True):
    """A named stretch of time, in seconds on the clock of `now_s`."""

    name: str
    begin_s: float
    end_s: float


class StartRecorder:
    """Collects the spans of one start, in one process."""

    def __init__(self) -> None:
        self._spans: list[Span] = []

    @property
    def spans(self) -> list[Span]:
        """What was recorded so far."""
        return list(self._spans)

    @contextlib.contextmanager
    def span(self, name: str) -> Iterator[None]:
        """Records what runs inside, also when it raises."""
        begin_s = now_s()
        try:
            yield
        finally:
            self.add(name, begin_s, now_s())

    def add(self, name: str, begin_s: float, end_s: float) -> None:
        """Records a span whose ends are known."""
        self._spans.append(Span(name, begin_s, max(begin_s, end_s)))

    def add_process(self, main_s: float) -> None:
        """Records how this process came up, from its start to `main_s`, when its own work began."""
        started_s = process_started_s()
        if started_s is not None and started_s < IMPORTED_S:
            self.add("python", started_s, IMPORTED_S)
        self.add("imports", IMPORTED_S, main_s)

    def extend(self, spans: Iterable[Span], begun_s: float) -> None:
        """Takes in the spans of a process that was started at `begun_s`.

        The system counts the starts of processes in ticks, so it may give an earlier time.
        """
        self._spans.extend(Span(span.name, max(span.begin_s, begun_s), span.end_s) for span in spans)


def process_started_s() -> float | None:
    """When this process was started; None where the system does not say (only Linux does)."""
    try:
        stat = Path("/proc/self/stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return None
    # The second field is the program's name in parentheses and may hold anything.
    fields = stat.rpartition(")")[2].split()
    started_s = int(fields[19]) / os.sysconf("SC_CLK_TCK")
    return started_s if 0 < started_s <= now_s() + _TICK_SLACK_S else None


@dataclass(frozen=True, slots=True)
class Phase:
    """A row of the table.

    Attributes:
        name: What was done.
        depth: 0 for the parts of the whole, 1 for their parts, and so on.
        seconds: How long; of a phase with parts, their sum.
        is_leaf: Whether it has no parts. The leaves add up to the wall time.
    """

    name: str
    depth: int
    seconds: float
    is_leaf: bool


@dataclass(frozen=True, slots=True)
class StartProfile:
    """The phases of a start, in order of time, each followed by its parts."""

    phases: tuple[Phase, ...]

    @property
    def wall_s(self) -> float:
        """Seconds from the process's start to the first token."""
        return sum(phase.seconds for phase in self.phases if phase.depth == 0)

    def table(self) -> str:
        """The phases as lines of text: seconds, share, name."""
        wall_s = self.wall_s
        lines = ["seconds  share  phase"]
        lines += [_line(phase.seconds, wall_s, "  " * phase.depth + phase.name) for phase in self.phases]
        return "\n".join([*lines, _line(wall_s, wall_s, "from the process's start to here")])


def _line(seconds: float, whole_s: float, name: str) -> str:
    return f"{seconds:7.3f}  {seconds / whole_s if whole_s else 0:5.1%}  {name}"


def build_profile(spans: Sequence[Span]) -> StartProfile:
    """Orders spans into a tree by time.

    What a span's parts leave of it becomes its last part, "other". A span that overlaps its elder sibling is
    counted from that one's end on.

    Args:
        spans: At least one; in any order.
    """
    ordered = sorted(spans, key=lambda span: (span.begin_s, -span.end_s))
    whole = Span("", ordered[0].begin_s, max(span.end_s for span in ordered))
    return StartProfile(tuple(_phases(whole, ordered, 0)))


def _phases(parent: Span, inside: Sequence[Span], depth: int) -> Iterator[Phase]:
    """The rows of what lies inside a span; `inside` is ordered by begin, the longer first."""
    at_s, other_s = parent.begin_s, 0.0
    for span, parts in _siblings(inside, parent.end_s):
        begin_s = max(span.begin_s, at_s)
        other_s += begin_s - at_s
        at_s = max(begin_s, span.end_s)
        yield Phase(span.name, depth, at_s - begin_s, is_leaf=not parts)
        if parts:
            yield from _phases(Span(span.name, begin_s, at_s), parts, depth + 1)
    other_s += parent.end_s - at_s
    if other_s > 0:
        yield Phase("other", depth, other_s, is_leaf=True)


def _siblings(ordered: Sequence[Span], limit_s: float) -> list[tuple[Span, list[Span]]]:
    """The outermost spans, cut off at the limit, and those inside each."""
    found: list[tuple[Span, list[Span]]] = []
    for span in ordered:
        cut = Span(span.name, span.begin_s, min(span.end_s, limit_s))
        if found and cut.end_s <= found[-1][0].end_s:
            found[-1][1].append(cut)
        else:
            found.append((cut, []))
    return found
