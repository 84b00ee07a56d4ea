"""Refuses bodies above a limit of size or of time, while reading. Knows nothing of what a body means."""

from __future__ import annotations

import asyncio

from llm_stack_server.asgi import App, Message, Receive, Scope, Send
from llm_stack_server.errors import BodyTooLarge, BodyTooSlow

DEFAULT_LIMIT_BYTES = 8 * 1024 * 1024
DEFAULT_TIMEOUT_S = 120.0
# A client that is still sending would meet a reset before it could read the 413. So a little more than the
# limit is read and thrown away first, within these bounds.
_DRAIN_BYTES = 64 * 1024 * 1024
_DRAIN_S = 5.0


class BodyLimitMiddleware:
    """Wraps ``receive``: raises `BodyTooLarge` to the reader, for declared and for chunked lengths alike.

    `BodyTooSlow` where the body is not whole in time, however steadily its pieces come.
    """

    def __init__(
        self, app: App, limit_bytes: int = DEFAULT_LIMIT_BYTES, timeout_s: float = DEFAULT_TIMEOUT_S
    ) -> None:
        self._app = app
        self._limit_bytes = limit_bytes
        self._timeout_s = timeout_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the application with a counting ``receive``."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        counting = _CountingReceive(receive, self._limit_bytes, _declared_length(scope), self._timeout_s)
        await self._app(scope, counting, send)


class _CountingReceive:
    def __init__(self, receive: Receive, limit_bytes: int, declared_bytes: int, timeout_s: float) -> None:
        self._receive = receive
        self._limit_bytes = limit_bytes
        self._seen_bytes = 0
        self._declared_bytes = declared_bytes
        self._timeout_s = timeout_s
        self._ends_at_s: float | None = None
        self._is_whole = False

    async def __call__(self) -> Message:
        too_large = self._declared_bytes > self._limit_bytes
        message: Message = {}
        if not too_large:
            message = await self._next()
            self._seen_bytes += len(message.get("body", b""))
            too_large = self._seen_bytes > self._limit_bytes
        if not too_large:
            return message
        await self._discard_rest(message)
        raise BodyTooLarge(self._limit_bytes)

    async def _next(self) -> Message:
        if self._is_whole:  # what comes now is the disconnect, whenever that is
            return await self._receive()
        if self._ends_at_s is None:
            self._ends_at_s = asyncio.get_running_loop().time() + self._timeout_s
        try:
            async with asyncio.timeout_at(self._ends_at_s) as timeout:
                message = await self._receive()
        except TimeoutError:
            if not timeout.expired():
                raise
            raise BodyTooSlow(self._timeout_s) from None
        self._is_whole = not message.get("more_body", False)
        return message

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
