"""Bounds what uvicorn leaves unbounded: heads in size and time, unread answers. Knows no routes."""

from __future__ import annotations

import asyncio
import select

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from llm_stack_server.connection import EXTENSION

MAX_HEAD_BYTES = 64 * 1024
HEAD_TIMEOUT_S = 30.0
LINGER_S = 5.0


def _answer(status: str, message: str, code: str) -> bytes:
    body = (
        f'{{"error":{{"message":"{message}","type":"invalid_request_error","param":null,"code":"{code}"}}}}'
    )
    return (
        f"HTTP/1.1 {status}\r\ncontent-type: application/json\r\nconnection: close\r\n"
        f"content-length: {len(body)}\r\n\r\n{body}"
    ).encode()


_TOO_LARGE = _answer(
    "431 Request Header Fields Too Large", "the request head is too large", "request_head_too_large"
)
_TOO_SLOW = _answer("408 Request Timeout", "the request head did not arrive in time", "request_timeout")
_MALFORMED = _answer("400 Bad Request", "the request is not valid HTTP", "invalid_http")


class BoundedHeadProtocol(HttpToolsProtocol):
    """Answers 431 and closes once request line and headers exceed `MAX_HEAD_BYTES`.

    A head must be whole within `head_timeout_s`, also the first one of a connection that sends nothing (408).
    Who is refused before the body was read may send the rest for `linger_s`, so that it can read the answer.
    Implements `connection.Connection`, and is found in the scope of each request.
    """

    head_timeout_s = HEAD_TIMEOUT_S
    linger_s = LINGER_S
    _head_timer: asyncio.TimerHandle | None = None
    _linger_timer: asyncio.TimerHandle | None = None
    _received_bytes = 0  # while the head is incomplete
    _parsed_bytes = 0  # of the head; a whole one may come in one piece
    _in_head = True

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A client has connected: its head must come."""
        super().connection_made(transport)
        self._start_head_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is gone."""
        self._stop_head_timer()
        self._stop_linger_timer()
        super().connection_lost(exc)

    def is_write_paused(self) -> bool:
        """Whether the client has not taken what was sent."""
        return self.flow.write_paused

    def write_chunk(self, data: bytes) -> None:
        """Send a chunk of the answer whose head has gone out."""
        if not self.transport.is_closing():
            self.transport.write(b"%x\r\n%b\r\n" % (len(data), data))

    def abort(self) -> None:
        """Close at once; what was not sent is thrown away."""
        self.transport.abort()

    def timeout_keep_alive_handler(self) -> None:
        """No request came for long. An answer that is still unread goes with the connection."""
        if self.transport.get_write_buffer_size():
            self.transport.abort()
        else:
            super().timeout_keep_alive_handler()

    def data_received(self, data: bytes) -> None:
        """Count what arrives before the headers are complete."""
        if self._in_head:
            self._received_bytes += len(data)
        super().data_received(data)
        if self._in_head and self._received_bytes > MAX_HEAD_BYTES and not self.transport.is_closing():
            self._refuse()

    def send_400_response(self, msg: str) -> None:  # noqa: ARG002 -- uvicorn's text is no JSON
        """Called when the parser stopped, by our own doing too."""
        if self._parsed_bytes > MAX_HEAD_BYTES:
            self._refuse()
        else:
            self.transport.write(_MALFORMED)
            self.transport.close()

    def on_message_begin(self) -> None:
        """The first byte of a head."""
        super().on_message_begin()
        self.scope["extensions"] = {EXTENSION: self}  # type: ignore[dict-item]
        if self._head_timer is None:
            self._start_head_timer()

    def on_url(self, url: bytes) -> None:
        """A piece of the request line."""
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header."""
        self._count(len(name) + len(value) + 4)  # with colon, space and line end
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """The head is whole; what follows is body."""
        self._in_head = False
        self._stop_head_timer()
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """The next bytes begin another head."""
        self._stop_linger_timer()
        super().on_message_complete()
        self._in_head = True
        self._received_bytes = self._parsed_bytes = 0

    def on_response_complete(self) -> None:
        """The answer is sent, perhaps before the whole request came."""
        super().on_response_complete()
        if not self._in_head and self._linger_timer is None and not self.transport.is_closing():
            self._linger_timer = self.loop.call_later(self.linger_s, self.transport.close)

    def _count(self, size: int) -> None:
        self._parsed_bytes += size
        if self._parsed_bytes > MAX_HEAD_BYTES:
            raise ValueError("the request head is too large")  # stops the parser

    def _refuse(self) -> None:
        self.transport.write(_TOO_LARGE)
        self.transport.close()

    def _start_head_timer(self) -> None:
        self._head_timer = self.loop.call_later(self.head_timeout_s, self._refuse_slow_head)

    def _stop_head_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _stop_linger_timer(self) -> None:
        if self._linger_timer is not None:
            self._linger_timer.cancel()
            self._linger_timer = None

    def _refuse_slow_head(self) -> None:
        self._head_timer = None
        if self.transport.is_closing():
            return
        if not self._received_bytes and self._has_unread_bytes():
            self._start_head_timer()  # our loop is late, not the client
            return
        if self._received_bytes:  # one that has sent nothing has asked nothing
            self.transport.write(_TOO_SLOW)
        self.transport.close()

    def _has_unread_bytes(self) -> bool:
        """Whether something has come that the loop has not looked at yet."""
        ready = select.poll()
        ready.register(self.transport.get_extra_info("socket").fileno(), select.POLLIN)
        return bool(ready.poll(0))
