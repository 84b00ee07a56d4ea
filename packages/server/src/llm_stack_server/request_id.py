"""Names every answer in ``x-request-id``. The name is for logs only: the engine gets an id of our own."""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterable

from llm_stack_server.asgi import App, Message, Receive, Scope, Send

_HEADER = b"x-request-id"
_SAFE = re.compile(rb"[A-Za-z0-9_.:\-]{1,128}")


class RequestIdMiddleware:
    """Echoes the client's id where it is harmless, else makes one."""

    def __init__(self, app: App) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the application and add the header to its answer."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = request_id_for(scope["headers"])

        async def send_named(message: Message) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message.get("headers", ()), (_HEADER, request_id)]}
            await send(message)

        await self._app(scope, receive, send_named)


def request_id_for(headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    """The id that a client sent, where it is harmless; else a new one."""
    for name, value in headers:
        if name == _HEADER and _SAFE.fullmatch(value):
            return bytes(value)
    return uuid.uuid4().hex.encode()
