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
    state = None if engine is None else engine.state
    measured = context.metrics
    families = None
    if context.shared is None:
        measured.engine.note(state, stats)
    else:
        generation = 0 if state is None else state.generation
        families, totals = await context.shared.metrics.gather(measured.families(), generation, stats)
        measured.engine.show(state, stats, totals)
    body, content_type = measured.render(request.headers.get("accept", ""), families)
    return Response(body, headers={"content-type": content_type})
