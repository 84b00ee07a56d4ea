"""GET /openapi.json."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import Response

router = APIRouter()


@router.get("/openapi.json")
async def openapi(request: Request) -> Response:
    """This description of all routes."""
    return Response(request.app.state.openapi, media_type="application/json")
