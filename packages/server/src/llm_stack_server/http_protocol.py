"""Bounds the head of an HTTP request, which uvicorn leaves unbounded. Knows no routes."""

from __future__ import annotations

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

MAX_HEAD_BYTES = 64 * 1024
_REFUSAL = (
    b'{"error":{"message":"the request head is too large","type":"invalid_request_error","param":null,'
    b'"code":"request_head_too_large"}}'
)


class BoundedHeadProtocol(HttpToolsProtocol):
    """Answers 431 and closes once the request line and headers exceed `MAX_HEAD_BYTES`."""

    _head_bytes = 0
    _in_head = True

    def data_received(self, data: bytes) -> None:
        """Count what arrives before the headers are complete."""
        if self._in_head:
            self._head_bytes += len(data)
        super().data_received(data)
        if self._in_head and self._head_bytes > MAX_HEAD_BYTES and not self.transport.is_closing():
            self.transport.write(
                b"HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-type: application/json\r\n"
                b"connection: close\r\ncontent-length: %d\r\n\r\n%s" % (len(_REFUSAL), _REFUSAL)
            )
            self.transport.close()

    def on_headers_complete(self) -> None:
        """The head is whole; what follows is body."""
        self._in_head = False
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """The next bytes begin another head."""
        super().on_message_complete()
        self._in_head = True
        self._head_bytes = 0
