"""Bounds how many clients are connected. Knows nothing of what they ask."""

from __future__ import annotations

import asyncio
import resource
from collections.abc import Callable
from typing import Any

import uvicorn

from llm_stack_server.asgi import App
from llm_stack_server.http_protocol import BoundedHeadProtocol

_RESERVED_FILES = 256  # for the engine, the log, the model's files
_LINGER_S = 1.0  # in which a refused client may read why
_BODY = (
    b'{"error":{"message":"the server has as many connections as it may; retry after 1 s",'
    b'"type":"server_error","param":null,"code":"too_many_connections"}}'
)
_REFUSAL = (
    b"HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\nconnection: close\r\n"
    b"retry-after: 1\r\ncontent-length: " + str(len(_BODY)).encode() + b"\r\n\r\n" + _BODY
)


def connections_for(wanted: int) -> int:
    """How many connections there may be: ``wanted``, or for 0 what the limit of open files leaves."""
    if wanted:
        return wanted
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 2**31 if files == resource.RLIM_INFINITY else max(1, files - min(_RESERVED_FILES, files // 4))


class BoundedConfig(uvicorn.Config):
    """uvicorn's options, with a bound on connections.

    Args:
        app: What answers.
        max_connections: How many there may be.
        on_refusal: Called for each one beyond.
        options: Of `uvicorn.Config`.
    """

    def __init__(
        self,
        app: App,
        *,
        max_connections: int,
        on_refusal: Callable[[], None],
        **options: Any,  # noqa: ANN401 -- uvicorn's own
    ) -> None:
        super().__init__(app, http=LimitedProtocol, **options)
        self.max_connections = max_connections
        self.on_refusal = on_refusal


class LimitedProtocol(BoundedHeadProtocol):
    """Answers 503 to a connection beyond the limit, whatever it asks, and closes it."""

    config: BoundedConfig
    _is_refused = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A client has connected: there is room for it or not."""
        if len(self.connections) < self.config.max_connections:
            super().connection_made(transport)
            return
        self._is_refused = True
        self.config.on_refusal()
        transport.write(_REFUSAL)
        if transport.can_write_eof():
            # What it sends is thrown away meanwhile: closed at once, the answer could be lost to a reset.
            transport.write_eof()
            self.loop.call_later(_LINGER_S, transport.abort)
        else:
            transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is gone."""
        if not self._is_refused:
            super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Bytes of a client that was let in."""
        if not self._is_refused:
            super().data_received(data)

    def eof_received(self) -> None:
        """The client sends no more."""
        if not self._is_refused:
            super().eof_received()
