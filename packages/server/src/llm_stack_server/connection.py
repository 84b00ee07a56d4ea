"""What an application may know of the connection to its client. Knows neither HTTP nor what is sent."""

from __future__ import annotations

from typing import Protocol

from llm_stack_server.asgi import Scope

EXTENSION = "llm_stack.connection"
"""Under this name our HTTP protocol puts the connection among the scope's extensions."""


class Connection(Protocol):
    """A client's connection."""

    def is_write_paused(self) -> bool:
        """Whether the client has not taken what was sent, so that sending would wait."""
        ...

    def write_chunk(self, data: bytes) -> None:
        """Send a piece of the body that is being streamed, without the way through the application's guards.

        Its head must have gone out by `send`, which also sends the end. Where the client has gone, nothing
        happens.
        """
        ...

    def abort(self) -> None:
        """Close at once; what was not sent is thrown away."""
        ...


def connection_of(scope: Scope) -> Connection | None:
    """The connection; None under a server that does not tell of it, where sending simply waits."""
    found: Connection | None = (scope.get("extensions") or {}).get(EXTENSION)
    return found
