"""Sends a generation as a whole answer or as a stream. Knows neither the bodies nor the formats."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from functools import partial

from fastapi import Request
from fastapi.responses import JSONResponse
from starlette.responses import Response

from llm_stack_server.context import Context, context_of
from llm_stack_server.deadline import deadline_of, until_deadline
from llm_stack_server.disconnect import until_disconnect
from llm_stack_server.generation import Generation
from llm_stack_server.observing.record import note_error
from llm_stack_server.stream_sender import StreamBounds
from llm_stack_server.streaming import DATA_EVENTS, EventStream, Framing, frames
from llm_stack_server.views.view import Chunk, View, stream_events, whole_answer


async def answer(
    request: Request,
    generation: Generation,
    view: View[Chunk],
    *,
    stream: bool,
    headers: Mapping[str, str],
    framing: Framing = DATA_EVENTS,
) -> Response:
    """Run ``generation`` and send it as ``view`` shows it.

    The status waits for the first delta, so a refusal is an HTTP error in a stream too.
    A client that leaves ends the work at once, before the first token as well.

    Raises:
        ClientDisconnected: the client left before there was anything to send.
        llm_engine.errors.EngineError: the engine refused the request, or failed before the first token.
    """
    if not stream:
        body = await until_disconnect(request.receive, whole_answer(view, generation))
        return JSONResponse(body, headers=dict(headers))
    try:
        await until_disconnect(request.receive, generation.start())
    except BaseException:
        await generation.aclose()  # its first token may have come at the moment of the end
        raise
    events = stream_events(view, generation)
    context = context_of(request)
    deadline = deadline_of(request)
    if deadline is not None:
        events = until_deadline(events, deadline, context.metrics)
    return event_stream(context, frames(events, framing, partial(note_error, request.scope)), headers)


def event_stream(
    context: Context, content: AsyncGenerator[bytes, None], headers: Mapping[str, str]
) -> EventStream:
    """The frames as an answer, within the bounds that the settings have for slow readers."""
    settings = context.settings
    return EventStream(
        content,
        headers,
        StreamBounds(settings.max_stream_buffer_bytes, settings.stream_stall_s),
        context.metrics.cut_off.labels("slow_reader").inc,
    )
