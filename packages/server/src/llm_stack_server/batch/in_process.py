"""Posts a body to an ASGI application in this process and reads the whole answer. Knows no single route."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from urllib.parse import quote

from llm_stack_server.asgi import App, Message
from llm_stack_server.batch.lines import Reply
from llm_stack_server.errors import ServerError


async def post(app: App, path: str, body: bytes, headers: Sequence[tuple[bytes, bytes]] = ()) -> Reply:
    """The answer to ``POST path``, as a client over HTTP would get it.

    Raises:
        ServerError: the application ended without a whole answer, or with one that is no JSON object.
    """
    exchange = _Exchange(body)
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": path,
        "raw_path": quote(path).encode(),
        "query_string": b"",
        "root_path": "",
        "headers": [
            (b"host", b"localhost"),
            (b"content-type", b"application/json"),
            (b"content-length", str(len(body)).encode()),
            *headers,
        ],
        "client": None,
        "server": None,
    }
    try:
        await app(scope, exchange.receive, exchange.send)
    except Exception:
        # The outermost handler answers with 500, logs, and raises again for the web server to see.
        if not exchange.is_whole:
            raise
    return exchange.reply(path)


class _Exchange:
    """One request and its answer."""

    def __init__(self, body: bytes) -> None:
        self._body: bytes | None = body
        self._status = 0
        self._request_id = ""
        self._answer = bytearray()
        self.is_whole = False

    async def receive(self) -> Message:
        """The body, once; then nothing ever: this client does not leave."""
        if self._body is None:
            await asyncio.get_running_loop().create_future()
        body, self._body = self._body, None
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(self, message: Message) -> None:
        """Take in a part of the answer."""
        if message["type"] == "http.response.start":
            self._status = message["status"]
            found = {name.lower(): value for name, value in message.get("headers", ())}
            self._request_id = found.get(b"x-request-id", b"").decode("latin-1")
        elif message["type"] == "http.response.body":
            self._answer += message.get("body", b"")
            self.is_whole = not message.get("more_body", False)

    def reply(self, path: str) -> Reply:
        """The answer.

        Raises:
            ServerError: it is not whole, or no JSON object.
        """
        if not self.is_whole:
            raise ServerError(f"{path} gave no whole answer")
        try:
            body = json.loads(bytes(self._answer))
        except ValueError as error:
            raise ServerError(f"{path} answered {self._status} with what is no JSON: {error}") from None
        if not isinstance(body, dict):
            raise ServerError(f"{path} answered {self._status} with what is no JSON object")
        return Reply(self._status, self._request_id, body)
