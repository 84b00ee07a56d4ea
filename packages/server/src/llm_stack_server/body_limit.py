"""Refuses bodies above a limit of size or of time, while reading. Knows nothing of what a body means."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from llm_stack_server.asgi import App, Message, Receive, Scope, Send
from llm_stack_server.errors import BodiesTooLarge, BodyTooLarge, BodyTooSlow

DEFAULT_LIMIT_BYTES = 8 * 1024 * 1024
DEFAULT_TIMEOUT_S = 120.0
DEFAULT_TOTAL_BYTES = 2**30
# A client that is still sending would meet a reset before it could read the 413. So a little more than the
# limit is read and thrown away first, within these bounds.
_DRAIN_BYTES = 64 * 1024 * 1024
_DRAIN_S = 5.0


class BodyBudget:
    """The memory that all bodies together may take, from their first byte until their requests have ended.

    Args:
        limit_bytes: How much; 0 stands for no limit.
    """

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self.used_bytes = 0

    def take(self, num_bytes: int) -> bool:
        """Take memory for more of a body; false, and nothing taken, where there is not so much."""
        if self._limit_bytes and self.used_bytes + num_bytes > self._limit_bytes:
            return False
        self.used_bytes += num_bytes
        return True

    def give_back(self, num_bytes: int) -> None:
        """The request has ended."""
        self.used_bytes -= num_bytes


class BodyLimitMiddleware:
    """Wraps ``receive``: raises `BodyTooLarge` to the reader, for declared and for chunked lengths alike.

    `BodyTooSlow` where the body is not whole in time, however steadily its pieces come. `BodiesTooLarge`
    where it would take more memory than is left for all bodies together.
    """

    def __init__(
        self,
        app: App,
        limit_bytes: int = DEFAULT_LIMIT_BYTES,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        budget_bytes: int = DEFAULT_TOTAL_BYTES,
        on_refusal: Callable[[], None] = lambda: None,
    ) -> None:
        self._app = app
        self._limit_bytes = limit_bytes
        self._timeout_s = timeout_s
        self._budget = BodyBudget(budget_bytes)
        self._on_refusal = on_refusal

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the application with a counting ``receive``."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        declared = _declared_length(scope)
        counting = _CountingReceive(
            receive, self._limit_bytes, declared, self._timeout_s, self._budget, self._on_refusal
        )
        try:
            await self._app(scope, counting, send)
        finally:
            # Until now: what was made of the body lives as long as its answer.
            self._budget.give_back(counting.held_bytes)


class _CountingReceive:
    def __init__(
        self,
        receive: Receive,
        limit_bytes: int,
        declared_bytes: int,
        timeout_s: float,
        budget: BodyBudget,
        on_refusal: Callable[[], None],
    ) -> None:
        self._receive = receive
        self._limit_bytes = limit_bytes
        self._seen_bytes = 0
        self._declared_bytes = declared_bytes
        self._timeout_s = timeout_s
        self._ends_at_s: float | None = None
        self._is_whole = False
        self._budget = budget
        self._on_refusal = on_refusal
        self.held_bytes = 0  # of the budget

    async def __call__(self) -> Message:
        too_large = self._declared_bytes > self._limit_bytes
        message: Message = {}
        if not too_large:
            message = await self._next()
            self._seen_bytes += len(message.get("body", b""))
            too_large = self._seen_bytes > self._limit_bytes
        if too_large:
            await self._discard_rest(message)
            raise BodyTooLarge(self._limit_bytes)
        size = len(message.get("body", b""))
        if not self._budget.take(size):
            self._on_refusal()
            await self._discard_rest(message)
            raise BodiesTooLarge
        self.held_bytes += size
        return message

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
