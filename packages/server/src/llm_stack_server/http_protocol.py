"""Bounds the head of an HTTP request, which uvicorn leaves unbounded. Knows no routes."""

from __future__ import annotations

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

MAX_HEAD_BYTES = 64 * 1024
_REFUSAL = (
    b'{"error":{"message":"the request head is too large","type":"invalid_request_error","param":null,'
    b'"code":"request_head_too_large"}}'
)
_ANSWER = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-type: application/json\r\n"
    b"connection: close\r\ncontent-length: %d\r\n\r\n%s" % (len(_REFUSAL), _REFUSAL)
)


class BoundedHeadProtocol(HttpToolsProtocol):
    """Answers 431 and closes once request line and headers exceed `MAX_HEAD_BYTES`."""

    _received_bytes = 0  # while the head is incomplete
    _parsed_bytes = 0  # of the head; a whole one may come in one piece
    _in_head = True

    def data_received(self, data: bytes) -> None:
        """Count what arrives before the headers are complete."""
        if self._in_head:
            self._received_bytes += len(data)
        super().data_received(data)
        if self._in_head and self._received_bytes > MAX_HEAD_BYTES and not self.transport.is_closing():
            self._refuse()

    def send_400_response(self, msg: str) -> None:
        """Called when the parser stopped, by our own doing too."""
        if self._parsed_bytes > MAX_HEAD_BYTES:
            self._refuse()
        else:
            super().send_400_response(msg)

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
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """The next bytes begin another head."""
        super().on_message_complete()
        self._in_head = True
        self._received_bytes = self._parsed_bytes = 0

    def _count(self, size: int) -> None:
        self._parsed_bytes += size
        if self._parsed_bytes > MAX_HEAD_BYTES:
            raise ValueError("the request head is too large")  # stops the parser

    def _refuse(self) -> None:
        self.transport.write(_ANSWER)
        self.transport.close()
