"""Ends requests at the time that their client, or the server, has set. Knows nothing of what they do."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import TypeVar

from starlette.requests import Request

from llm_stack_server.asgi import App, Message, Receive, Scope, Send
from llm_stack_server.errors import DeadlineExceeded, InvalidField
from llm_stack_server.http_errors import error_response
from llm_stack_server.metrics import Metrics

HEADER = "x-timeout-s"
DEADLINE_STATE = "deadline"
_REASON = "deadline"

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Deadline:
    """When a request must be done.

    Attributes:
        limit_s: Seconds from the request's head.
        at_s: The same in the loop's time.
    """

    limit_s: float
    at_s: float


class DeadlineMiddleware:
    """Answers 504 at the deadline of a request whose answer has not begun, and ends its work.

    Once an answer has begun, `until_deadline` ends its stream.
    """

    def __init__(self, app: App, metrics: Metrics, max_s: float = 0.0) -> None:
        """Guard ``app``.

        Args:
            app: What is guarded.
            metrics: Counts the requests that were ended.
            max_s: The limit of requests that set none, and the largest that they can set; 0 for none.
        """
        self._app = app
        self._metrics = metrics
        self._max_s = max_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the application until it is done or too late."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        try:
            limit_s = self._limit_s(scope)
        except InvalidField as error:
            await error_response(error, scope)(scope, receive, send)
            return
        if limit_s is None:
            await self._app(scope, receive, send)
            return
        deadline = Deadline(limit_s, asyncio.get_running_loop().time() + limit_s)
        scope["state"] = {**scope.get("state", {}), DEADLINE_STATE: deadline}
        timeout = asyncio.timeout_at(deadline.at_s)

        async def send_in_time(message: Message) -> None:
            if message["type"] == "http.response.start" and not timeout.expired():
                timeout.reschedule(None)
            await send(message)

        try:
            async with timeout:
                await self._app(scope, receive, send_in_time)
        except TimeoutError:
            if not timeout.expired():
                raise
            self._metrics.cut_off.labels(_REASON).inc()
            await error_response(DeadlineExceeded(limit_s), scope)(scope, receive, send)

    def _limit_s(self, scope: Scope) -> float | None:
        given = next((value for name, value in scope["headers"] if name == HEADER.encode()), None)
        if given is None:
            return self._max_s or None
        try:
            limit_s = float(given)
        except ValueError:
            limit_s = math.nan
        if not (math.isfinite(limit_s) and limit_s > 0):
            raise InvalidField(HEADER, f"{HEADER}: must be a number of seconds above 0")
        return min(limit_s, self._max_s) if self._max_s else limit_s


def deadline_of(request: Request) -> Deadline | None:
    """The deadline of the request, or None."""
    deadline: Deadline | None = request.scope.get("state", {}).get(DEADLINE_STATE)
    return deadline


async def until_deadline(
    events: AsyncGenerator[T, None], deadline: Deadline, metrics: Metrics
) -> AsyncGenerator[T, None]:
    """The events up to the deadline.

    Raises:
        DeadlineExceeded: it came first; ``events`` is closed, so the work behind it has ended.
    """
    try:
        while True:
            try:
                async with asyncio.timeout_at(deadline.at_s) as timeout:
                    event = await anext(events)
            except StopAsyncIteration:
                return
            except TimeoutError:
                if not timeout.expired():
                    raise
                metrics.cut_off.labels(_REASON).inc()
                raise DeadlineExceeded(deadline.limit_s) from None
            yield event
    finally:
        await events.aclose()
