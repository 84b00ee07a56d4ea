"""A client that costs little: streamed answers over raw sockets, their bytes kept and read in the end."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

_END = b"\r\n0\r\n\r\n"


@dataclass(slots=True)
class Stream:
    """One request and what came of it.

    Attributes:
        sent_s: When it was sent, in the loop's time.
        arrivals_s: When bytes of the body came.
        raw: Head and body, chunked as they came.
        is_whole: The last chunk has come.
        left: The client has left before that, as it was told.
    """

    sent_s: float = 0.0
    arrivals_s: list[float] = field(default_factory=list)
    raw: bytearray = field(default_factory=bytearray)
    is_whole: bool = False
    left: bool = False

    @property
    def status(self) -> int:
        """The HTTP status; 0: none came."""
        return int(self.raw[9:12]) if len(self.raw) >= 12 else 0

    def body(self) -> bytes:
        """The body, its chunks joined."""
        rest = bytes(self.raw).partition(b"\r\n\r\n")[2]
        parts: list[bytes] = []
        while rest:
            size_line, _, rest = rest.partition(b"\r\n")
            size = int(size_line or b"0", 16)
            parts.append(rest[:size])
            rest = rest[size + 2 :]
        return b"".join(parts)

    def events(self) -> list[Any]:
        """The events; the end mark is left out."""
        lines = self.body().split(b"\n")
        return [json.loads(line[6:]) for line in lines if line.startswith(b"data: {")]


class _Protocol(asyncio.Protocol):
    def __init__(self, request: bytes, leaves: Callable[[Stream], bool] | None) -> None:
        self.stream = Stream()
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._request = request
        self._leaves = leaves
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self.stream.sent_s = time.perf_counter()
        transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        stream = self.stream
        stream.raw += data
        if b"data: " in data:
            stream.arrivals_s.append(time.perf_counter())
        if stream.raw.endswith(_END):
            stream.is_whole = True
            self._end()
        elif self._leaves is not None and self._leaves(stream):
            self.leave()

    def leave(self) -> None:
        """Hang up at once."""
        self.stream.left = True
        self._end()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - the protocol's
        self._end()

    def _end(self) -> None:
        assert self._transport is not None
        if not self.done.done():
            self._transport.abort() if self.stream.left else self._transport.close()
            self.done.set_result(None)


def request_bytes(path: str, body: Mapping[str, Any]) -> bytes:
    """A POST as it goes over the wire."""
    data = json.dumps(body).encode()
    head = (
        f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
        f"content-length: {len(data)}\r\nconnection: close\r\n\r\n"
    )
    return head.encode() + data


async def run_stream(
    port: int,
    request: bytes,
    *,
    leaves: Callable[[Stream], bool] | None = None,
    leave_after_s: float | None = None,
) -> Stream:
    """Send a request and take its answer.

    Args:
        port: Of a server on this machine.
        request: See `request_bytes`.
        leaves: Asked after each arrival whether to hang up.
        leave_after_s: Hang up after so many seconds, whatever has come.
    """
    loop = asyncio.get_running_loop()
    _, protocol = await loop.create_connection(lambda: _Protocol(request, leaves), "127.0.0.1", port)
    timer = None if leave_after_s is None else loop.call_later(leave_after_s, protocol.leave)
    try:
        await protocol.done
    finally:
        if timer is not None:
            timer.cancel()
    return protocol.stream
