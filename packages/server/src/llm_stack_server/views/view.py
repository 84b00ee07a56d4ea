"""What every answer format offers, and the two ways to send it. Knows no single format."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Iterable
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias, TypeVar

from llm_stack_server.generation import ChoiceDelta, Generation, Usage

Event: TypeAlias = dict[str, Any]
Chunk: TypeAlias = Event | bytes
"""An event, or one that is JSON already; see `text_template`."""
C = TypeVar("C", bound=Chunk)
C_co = TypeVar("C_co", bound=Chunk, covariant=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Envelope:
    """What all chunks of an answer have in common."""

    answer_id: str
    model: str
    fingerprint: str
    created: int = field(default_factory=lambda: int(time.time()))

    def wrap(self, kind: str, choices: list[Event], **more: object) -> Event:
        """A chunk or a whole answer of type ``kind``."""
        return {
            "id": self.answer_id,
            "object": kind,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": self.fingerprint,
            "choices": choices,
            **more,
        }


class View(Protocol[C_co]):
    """One answer format. Feed deltas, in order of arrival, to `chunks` (streamed) or to `add` (whole)."""

    def opening(self) -> Iterable[C_co]:
        """Chunks before the first delta."""
        ...

    def chunks(self, event: ChoiceDelta) -> Iterable[C_co]:
        """Chunks for one delta."""
        ...

    def closing(self, usage: Usage) -> Iterable[C_co]:
        """Chunks after the last delta."""
        ...

    def add(self, event: ChoiceDelta) -> None:
        """Keep one delta for the whole answer."""
        ...

    def whole(self, usage: Usage) -> Event:
        """The whole answer."""
        ...


async def stream_events(view: View[C], generation: Generation) -> AsyncGenerator[C, None]:
    """All chunks of a streamed answer."""
    deltas = generation.deltas()
    try:
        for chunk in view.opening():
            yield chunk
        async for event in deltas:
            for chunk in view.chunks(event):
                yield chunk
        for chunk in view.closing(generation.usage):
            yield chunk
    finally:
        await deltas.aclose()


async def whole_answer(view: View[Chunk], generation: Generation) -> Event:
    """The answer in one piece, from the same deltas that a stream would send."""
    deltas = generation.deltas()
    try:
        async for event in deltas:
            view.add(event)
    finally:
        await deltas.aclose()
    return view.whole(generation.usage)
