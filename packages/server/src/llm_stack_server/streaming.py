"""Server-sent events: frames, the end mark, errors inside a stream. Knows nothing of what the events mean."""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from starlette.responses import Response

from llm_stack_server.asgi import Receive, Scope, Send
from llm_stack_server.connection import connection_of
from llm_stack_server.disconnect import until_disconnect
from llm_stack_server.errors import ApiError, ClientDisconnected, SlowReader
from llm_stack_server.http_errors import anthropic_body, log_fault, to_api_error
from llm_stack_server.observing.record import note_error, note_sent
from llm_stack_server.stream_sender import StreamBounds, StreamSender
from llm_stack_server.views.view import C

_LOG = logging.getLogger("llm_stack_server")
_STATUS_TOO_SLOW = 408


@dataclass(frozen=True, slots=True)
class Framing:
    """How one API frames its events.

    Attributes:
        named: An ``event:`` line with the event's type goes before the data.
        end: The mark of a whole stream.
        error_body: The event that tells of an error.
    """

    named: bool
    end: bytes
    error_body: Callable[[ApiError], Mapping[str, Any]]

    def frame(self, event: Mapping[str, Any] | bytes) -> bytes:
        """One event, or the JSON of one that needs no name. NaN and infinity never pass."""
        if isinstance(event, bytes):
            return b"data: " + event + b"\n\n"
        data = json.dumps(event, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
        head = b"event: " + str(event["type"]).encode() + b"\n" if self.named else b""
        return head + b"data: " + data + b"\n\n"


DATA_EVENTS = Framing(named=False, end=b"data: [DONE]\n\n", error_body=ApiError.body)
"""OpenAI's chat and completions."""
NAMED_EVENTS = Framing(named=True, end=b"", error_body=anthropic_body)
"""Anthropic's messages; their last event is the end mark."""

EVENTS_WITHOUT_END = Framing(
    named=True, end=b"", error_body=lambda error: {"type": "error", **error.body()["error"]}
)
"""OpenAI's responses; their last event is the end mark."""


async def frames(
    events: AsyncGenerator[C, None],
    framing: Framing = DATA_EVENTS,
    on_error: Callable[[ApiError], None] | None = None,
) -> AsyncGenerator[bytes, None]:
    """Frames of all events and the end mark.

    An error after the first byte cannot change the status any more. It becomes an event of its own, of which
    ``on_error`` is told, and the stream ends without the end mark, so that no client takes the answer for a
    whole one.
    """
    try:
        async for event in events:
            yield framing.frame(event)
    except Exception as error:  # noqa: BLE001 -- told to the client and logged; the status is already sent
        log_fault(error)
        api_error = to_api_error(error)
        if on_error is not None:
            on_error(api_error)
        yield framing.frame(framing.error_body(api_error))
        return
    finally:
        await events.aclose()
    if framing.end:
        yield framing.end


class EventStream(Response):
    """Sends frames until they end, the client leaves, or it is too slow, whichever comes first."""

    media_type = "text/event-stream"

    def __init__(
        self,
        content: AsyncGenerator[bytes, None],
        headers: Mapping[str, str],
        bounds: StreamBounds,
        on_slow_reader: Callable[[], None],
    ) -> None:
        # Proxies must pass frames on as they come.
        super().__init__(headers={"cache-control": "no-store", "x-accel-buffering": "no", **headers})
        del self.headers["content-length"]
        self._content = content
        self._bounds = bounds
        self._on_slow_reader = on_slow_reader

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send all frames; when the client leaves, the work behind them ends at once."""
        connection = connection_of(scope)
        sender = StreamSender(send, connection, self._bounds)
        try:
            await until_disconnect(receive, self._send_all(send, sender))
        except ClientDisconnected:
            return
        except SlowReader as error:
            self._on_slow_reader()
            note_error(scope, ApiError(_STATUS_TOO_SLOW, str(error), code="slow_reader"))
            _LOG.warning("a stream was cut off: %s", error)
            if connection is None:
                raise
            connection.abort()
            await receive()  # the disconnect, so that the server knows of it before we return
        finally:
            await self._content.aclose()
            note_sent(scope, sender.num_direct_bytes)

    async def _send_all(self, send: Send, sender: StreamSender) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        await sender.run(self._content)
