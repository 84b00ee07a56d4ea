"""Owns the record of which requests a core is working on, which outlives the core; judges nobody.

A file in shared memory pages: what was written is there after a SIGKILL. The two halves take turns and one
byte tells which holds, so a death in the middle of a write leaves the record before it.
"""

import mmap
import struct
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Protocol

import msgspec
from llm_scheduler import NewRow
from llm_scheduler.plan import Int32

_HALF_BYTES = 1 << 20
_START = 16
_LENGTH = struct.Struct("<I")


class JournalEntry(msgspec.Struct, frozen=True, array_like=True):
    """What a core was at.

    Attributes:
        running: Requests in the steps that were not over, and those being taken in.
        cleared: Suspects that made progress or ended since the core started.
    """

    running: list[str] = []
    cleared: list[str] = []


class PlannedStep(Protocol):
    """What is read of a step plan."""

    @property
    def slots(self) -> Int32:
        """int32[R], the rows that run."""
        ...

    @property
    def admitted(self) -> list[NewRow]:
        """The requests new to their slots."""
        ...


def journal_path(folder: Path, generation: int) -> Path:
    """Where a core's journal lies."""
    return folder / f"journal-{generation}"


class StepJournal:
    """A core's side: written before each step whose requests differ from those of the step before.

    Args:
        path: The file; made anew.
    """

    def __init__(self, path: Path) -> None:
        with path.open("w+b") as file:
            file.truncate(_START + 2 * _HALF_BYTES)
            self._memory = mmap.mmap(file.fileno(), 0)
        self._encoder = msgspec.msgpack.Encoder()
        self._ids: dict[int, str] = {}
        self._slots = b""
        self._step: list[str] = []
        self._step_before: list[str] = []
        self._exposed: dict[str, None] = {}
        self._cleared: list[str] = []
        self._half = 0

    def arriving(self, request_id: str) -> None:
        """A request is about to be taken in, or its grammar is about to be compiled."""
        self._exposed[request_id] = None
        self._write()

    def settled(self, request_ids: Iterable[str]) -> None:
        """These were taken in, or have ended."""
        for request_id in request_ids:
            self._exposed.pop(request_id, None)

    def planned(self, plan: PlannedStep) -> None:
        """A step is about to be handed over; the one before it may still run."""
        slots = plan.slots.tobytes()
        for row in plan.admitted:
            self._ids[row.slot] = row.request_id
            self._exposed.pop(row.request_id, None)
        unchanged = slots == self._slots and not plan.admitted
        if unchanged and self._step is self._step_before:
            return
        self._step_before = self._step
        if not unchanged:
            self._slots = slots
            self._step = [self._ids[slot] for slot in plan.slots.tolist() if slot in self._ids]
        self._write()

    def clear(self, request_ids: Sequence[str]) -> None:
        """These suspects have shown progress, or have ended."""
        self._cleared.extend(request_ids)
        self._write()

    def _write(self) -> None:
        running = dict.fromkeys((*self._step_before, *self._step, *self._exposed))
        data = self._encoder.encode(JournalEntry(list(running), self._cleared))
        if len(data) > _HALF_BYTES - _LENGTH.size:
            return  # tens of thousands of requests: the record before it holds on
        self._half = 1 - self._half
        start = _START + self._half * _HALF_BYTES
        self._memory[start : start + _LENGTH.size] = _LENGTH.pack(len(data))
        self._memory[start + _LENGTH.size : start + _LENGTH.size + len(data)] = data
        self._memory[0] = self._half


def read_journal(path: Path) -> JournalEntry:
    """What a core was at when it died; empty where it wrote nothing."""
    try:
        data = path.read_bytes()
    except OSError:
        return JournalEntry()
    if len(data) < _START:
        return JournalEntry()
    start = _START + data[0] * _HALF_BYTES
    (length,) = _LENGTH.unpack_from(data, start)
    if not length:
        return JournalEntry()
    try:
        return msgspec.msgpack.decode(
            data[start + _LENGTH.size : start + _LENGTH.size + length], type=JournalEntry
        )
    except msgspec.MsgspecError:
        return JournalEntry()
