"""Sends a stream to a client that may read slowly: what is kept for it is bounded. Knows no events."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import dataclass

from llm_stack_server.asgi import Send
from llm_stack_server.connection import Connection
from llm_stack_server.errors import SlowReader

DEFAULT_BUFFER_BYTES = 1024 * 1024
DEFAULT_STALL_S = 60.0


@dataclass(frozen=True, slots=True)
class StreamBounds:
    """What is borne of a client that does not read.

    Attributes:
        max_bytes: Bytes kept for it, beside what the sockets hold.
        stall_s: Seconds for which it may take nothing.
    """

    max_bytes: int = DEFAULT_BUFFER_BYTES
    stall_s: float = DEFAULT_STALL_S


class StreamSender:
    """Sends frames as they come. While the client takes none they are joined and kept, within the bounds.

    So a slow client never slows the engine down, and never makes the server hold more than a set amount.

    Attributes:
        num_direct_bytes: Bytes of the body that went to the connection at once and not through ``send``.
    """

    def __init__(self, send: Send, connection: Connection | None, bounds: StreamBounds) -> None:
        self._send = send
        self._connection = connection
        self._bounds = bounds
        self._kept: list[bytes] = []
        self._kept_bytes = 0
        self._flush: asyncio.Task[None] | None = None
        self._progress_s = 0.0
        self.num_direct_bytes = 0

    async def run(self, frames: AsyncGenerator[bytes, None]) -> None:
        """Send all frames and the end of the body.

        Raises:
            SlowReader: the client does not keep up, and a bound is reached.
        """
        try:
            async for frame in frames:
                if self._flush is not None or self._is_paused():
                    self._keep(frame)
                elif self._connection is not None:
                    self._connection.write_chunk(frame)
                    self.num_direct_bytes += len(frame)
                else:
                    await self._send_body(frame, more=True)
            await self._finish()
        finally:
            if self._flush is not None:
                self._flush.cancel()
                await asyncio.gather(self._flush, return_exceptions=True)

    def _is_paused(self) -> bool:
        return self._connection is not None and self._connection.is_write_paused()

    def _keep(self, frame: bytes) -> None:
        self._kept.append(frame)
        self._kept_bytes += len(frame)
        now_s = asyncio.get_running_loop().time()
        if self._flush is None:
            self._progress_s = now_s
            self._flush = asyncio.ensure_future(self._send_kept())
        if self._kept_bytes > self._bounds.max_bytes:
            raise SlowReader(f"{self._kept_bytes} bytes wait for a client that does not read them")
        if now_s - self._progress_s > self._bounds.stall_s:
            raise SlowReader(f"the client has read nothing for {self._bounds.stall_s:g} s")

    async def _send_kept(self) -> None:
        while self._kept:
            joined = b"".join(self._kept)
            self._kept.clear()
            # Until it is sent it still counts: `send` holds it.
            await self._send_body(joined, more=True)
            self._kept_bytes -= len(joined)
            self._progress_s = asyncio.get_running_loop().time()
        self._flush = None

    async def _finish(self) -> None:
        """Wait for what is kept, then send the end; all of it within the time for a stall."""
        try:
            async with asyncio.timeout(self._bounds.stall_s):
                if self._flush is not None:
                    await self._flush
                await self._send_body(b"", more=False)
        except TimeoutError:
            raise SlowReader(f"the client has not read the rest within {self._bounds.stall_s:g} s") from None

    async def _send_body(self, body: bytes, *, more: bool) -> None:
        await self._send({"type": "http.response.body", "body": body, "more_body": more})
