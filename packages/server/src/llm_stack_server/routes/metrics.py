"""GET /metrics."""

from __future__ import annotations

import contextlib

from fastapi import APIRouter, Request
from llm_engine.errors import EngineDead, EngineRestarting
from starlette.responses import Response

from llm_stack_server.context import context_of

router = APIRouter()


@router.get("/metrics")
async def metrics(request: Request) -> Response:
    """Prometheus text, with a fresh snapshot of the engine."""
    context = context_of(request)
    engine = context.lifecycle.engine
    stats = None
    if engine is not None and engine.is_healthy():
        with contextlib.suppress(EngineDead, EngineRestarting):  # then shown as engine_up 0
            stats = await engine.stats()
    context.metrics.engine.note(None if engine is None else engine.state, stats)
    body, content_type = context.metrics.render(request.headers.get("accept", ""))
    return Response(body, headers={"content-type": content_type})
