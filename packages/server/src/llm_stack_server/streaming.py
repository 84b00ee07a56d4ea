"""Server-sent events: frames, the end mark, errors inside a stream. Knows nothing of what the events mean."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Mapping
from typing import Any

from starlette.responses import StreamingResponse

from llm_stack_server.asgi import Receive, Scope, Send
from llm_stack_server.disconnect import until_disconnect
from llm_stack_server.errors import ClientDisconnected
from llm_stack_server.http_errors import log_fault, to_api_error

DONE = b"data: [DONE]\n\n"


def frame(event: Mapping[str, Any]) -> bytes:
    """One event as a ``data:`` frame. NaN and infinity never pass."""
    return (
        b"data: "
        + json.dumps(event, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
        + b"\n\n"
    )


async def frames(events: AsyncGenerator[Mapping[str, Any], None]) -> AsyncGenerator[bytes, None]:
    """Frames of all events and the end mark.

    An error after the first byte cannot change the status any more. It becomes an event ``{"error": ...}``
    and the stream ends without the end mark, so that no client takes the answer for a whole one.
    """
    try:
        async for event in events:
            yield frame(event)
    except Exception as error:  # noqa: BLE001 -- told to the client and logged; the status is already sent
        log_fault(error)
        yield frame(to_api_error(error).body())
        return
    finally:
        await events.aclose()
    yield DONE


class EventStream(StreamingResponse):
    """Sends frames until they end or the client leaves, whichever comes first."""

    media_type = "text/event-stream"

    def __init__(self, content: AsyncGenerator[bytes, None], headers: Mapping[str, str]) -> None:
        # Proxies must pass frames on as they come.
        super().__init__(content, headers={"cache-control": "no-store", "x-accel-buffering": "no", **headers})
        self._content = content

    async def __call__(self, _scope: Scope, receive: Receive, send: Send) -> None:
        """Send all frames; when the client leaves, the work behind them ends at once."""
        try:
            await until_disconnect(receive, self.stream_response(send))
        except ClientDisconnected:
            return
        finally:
            await self._content.aclose()
