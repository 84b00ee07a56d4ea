"""What makes a response: one generation, or several with calls between them. Knows nothing of HTTP."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Protocol

from llm_stack_server.generation import Generation, Usage
from llm_stack_server.views.view import Event, View, stream_events, whole_answer


class Run(Protocol):
    """The work of one response. Iterate `events` or await `whole`, once."""

    @property
    def usage(self) -> Usage:
        """Tokens so far."""
        ...

    async def start(self) -> None:
        """Wait for the first token, so that a refusal can still become an HTTP status."""
        ...

    async def whole(self) -> Event:
        """The response in one piece."""
        ...

    def events(self) -> AsyncGenerator[Event, None]:
        """The response as it is made."""
        ...

    async def aclose(self) -> None:
        """End what was started and will not be iterated."""
        ...


class OneGeneration:
    """A response that is one generation."""

    def __init__(self, view: View[Event], generation: Generation) -> None:
        self._view = view
        self._generation = generation

    @property
    def usage(self) -> Usage:
        """Tokens so far."""
        return self._generation.usage

    async def start(self) -> None:
        """Wait for the first token."""
        await self._generation.start()

    async def whole(self) -> Event:
        """The response in one piece."""
        return await whole_answer(self._view, self._generation)

    def events(self) -> AsyncGenerator[Event, None]:
        """The response as it is made."""
        return stream_events(self._view, self._generation)

    async def aclose(self) -> None:
        """End what was started and will not be iterated."""
        await self._generation.aclose()
