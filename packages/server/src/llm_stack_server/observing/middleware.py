"""Follows each HTTP request from its head to its last byte. The outermost of all guards."""

from __future__ import annotations

import asyncio
from collections.abc import Collection

from fastapi import APIRouter
from fastapi.routing import APIRoute
from prometheus_client import Counter

from llm_stack_server.asgi import App, Message, Receive, Scope, Send
from llm_stack_server.auth import api_key_of
from llm_stack_server.errors import ApiError
from llm_stack_server.observing.journal import RequestJournal
from llm_stack_server.observing.record import RECORD_STATE, UNMATCHED, RequestRecord

_METHODS = frozenset({"GET", "POST", "HEAD", "OPTIONS", "PUT", "DELETE", "PATCH"})
_STREAM_TYPE = b"text/event-stream"
_REQUEST_ID = b"x-request-id"
_STATUS_FAULT = 500
_STATUS_CLIENT_GONE = 499


class ObservingMiddleware:
    """Names every answer in ``x-request-id``, counts it, and writes its record.

    One wrapper around `send` does all of it: it is called for each frame of a stream.
    """

    def __init__(
        self, app: App, journal: RequestJournal, answers: Counter, plain_paths: Collection[str] = ()
    ) -> None:
        """Follow the requests of ``app``.

        Args:
            app: What is followed.
            journal: Gets the records.
            answers: Counts answers by method, route and status.
            plain_paths: Routes whose template is their path.
        """
        self._app = app
        self._journal = journal
        self._answers = answers
        self._plain_paths = frozenset(plain_paths)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the application and follow what it sends."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        method = scope["method"] if scope["method"] in _METHODS else "other"
        record = self._journal.begin(method, scope["headers"])
        scope["state"] = {**scope.get("state", {}), RECORD_STATE: record}
        answer = _Answer(record, receive, send)
        try:
            await self._app(scope, answer.receive, answer.send)
        except asyncio.CancelledError:
            record.client_left = True
            raise
        except Exception:
            record.fail(ApiError(_STATUS_FAULT, "", code="internal_error"))
            raise
        finally:
            self._end(scope, record)

    def _end(self, scope: Scope, record: RequestRecord) -> None:
        record.route = self._template_of(scope)
        if not record.status:
            record.status = _STATUS_CLIENT_GONE if record.client_left else _STATUS_FAULT
        key = api_key_of(scope)
        record.key_name = None if key is None else key.name
        self._answers.labels(record.method, record.route, str(record.status)).inc()
        self._journal.end(record)

    def _template_of(self, scope: Scope) -> str:
        """The template of the route; never the raw path, which clients choose."""
        template: str | None = getattr(scope.get("route"), "path", None)
        if template is not None:
            return template
        # Refused by a guard before its route was looked for.
        return scope["path"] if scope["path"] in self._plain_paths else UNMATCHED


class _Answer:
    """One exchange: notes what passes."""

    __slots__ = ("_is_whole", "_receive", "_record", "_send")

    def __init__(self, record: RequestRecord, receive: Receive, send: Send) -> None:
        self._record = record
        self._receive = receive
        self._send = send
        self._is_whole = False

    async def receive(self) -> Message:
        """What the client sends; a disconnect before the end of the answer is noted."""
        message = await self._receive()
        if message["type"] == "http.disconnect" and not self._is_whole:
            self._record.client_left = True
        return message

    async def send(self, message: Message) -> None:
        """What the client gets."""
        record = self._record
        if message["type"] == "http.response.body":
            record.bytes_sent += len(message.get("body", b""))
            if not message.get("more_body", False):
                self._is_whole = True
        elif message["type"] == "http.response.start":
            record.status = message["status"]
            headers = list(message.get("headers", ()))
            record.is_stream = any(
                name == b"content-type" and value.startswith(_STREAM_TYPE) for name, value in headers
            )
            message = {**message, "headers": [*headers, (_REQUEST_ID, record.request_id.encode())]}
        await self._send(message)


def plain_paths_of(router: APIRouter) -> list[str]:
    """Paths of its routes that have no parameter."""
    return [route.path for route in router.routes if isinstance(route, APIRoute) and "{" not in route.path]
