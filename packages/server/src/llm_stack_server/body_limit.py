"""Refuses bodies above a limit, counted while reading. Knows nothing of what a body means."""

from __future__ import annotations

import asyncio

from llm_stack_server.asgi import App, Message, Receive, Scope, Send
from llm_stack_server.errors import BodyTooLarge

DEFAULT_LIMIT_BYTES = 8 * 1024 * 1024
# A client that is still sending would meet a reset before it could read the 413. So a little more than the
# limit is read and thrown away first, within these bounds.
_DRAIN_BYTES = 64 * 1024 * 1024
_DRAIN_S = 5.0


class BodyLimitMiddleware:
    """Wraps ``receive``: raises `BodyTooLarge` to the reader, for declared and for chunked lengths alike."""

    def __init__(self, app: App, limit_bytes: int = DEFAULT_LIMIT_BYTES) -> None:
        self._app = app
        self._limit_bytes = limit_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the application with a counting ``receive``."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        await self._app(scope, _CountingReceive(receive, self._limit_bytes, _declared_length(scope)), send)


class _CountingReceive:
    def __init__(self, receive: Receive, limit_bytes: int, declared_bytes: int) -> None:
        self._receive = receive
        self._limit_bytes = limit_bytes
        self._seen_bytes = 0
        self._declared_bytes = declared_bytes

    async def __call__(self) -> Message:
        too_large = self._declared_bytes > self._limit_bytes
        message: Message = {}
        if not too_large:
            message = await self._receive()
            self._seen_bytes += len(message.get("body", b""))
            too_large = self._seen_bytes > self._limit_bytes
        if not too_large:
            return message
        await self._discard_rest(message)
        raise BodyTooLarge(self._limit_bytes)

    async def _discard_rest(self, last: Message) -> None:
        more = bool(last.get("more_body", True))
        discarded = 0
        try:
            async with asyncio.timeout(_DRAIN_S):
                while more and discarded < _DRAIN_BYTES:
                    message = await self._receive()
                    discarded += len(message.get("body", b""))
                    more = bool(message.get("more_body", False))
        except TimeoutError:
            return


def _declared_length(scope: Scope) -> int:
    for name, value in scope["headers"]:
        if name == b"content-length":
            return int(value) if value.isdigit() else 0
    return 0
