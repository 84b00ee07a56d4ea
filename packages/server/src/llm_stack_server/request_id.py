"""Names every answer in ``x-request-id``. The name is for logs only: the engine gets an id of our own."""

from __future__ import annotations

import re
import uuid

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
        request_id = _given(scope) or uuid.uuid4().hex.encode()

        async def send_named(message: Message) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message.get("headers", ()), (_HEADER, request_id)]}
            await send(message)

        await self._app(scope, receive, send_named)


def _given(scope: Scope) -> bytes | None:
    for name, value in scope["headers"]:
        if name == _HEADER and _SAFE.fullmatch(value):
            return bytes(value)
    return None
