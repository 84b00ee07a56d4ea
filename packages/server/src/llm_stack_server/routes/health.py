"""The probes and /version."""

from __future__ import annotations

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse

from llm_stack_server.context import context_of
from llm_stack_server.http_errors import error_response

router = APIRouter()


@router.get("/health/live")
async def live() -> JSONResponse:
    """200 as long as the process answers at all."""
    return JSONResponse({"status": "live"})


@router.get("/health/ready")
async def ready(request: Request) -> JSONResponse:
    """200 while new work is taken; 503 while loading, while draining, and once the engine is gone."""
    fault = context_of(request).lifecycle.fault()
    return JSONResponse({"status": "ready"}) if fault is None else error_response(fault, request.scope)


@router.get("/health")
async def health(request: Request) -> JSONResponse:
    """The same as /health/ready."""
    return await ready(request)


@router.get("/version")
async def version(request: Request) -> JSONResponse:
    """The server's version."""
    return JSONResponse({"version": context_of(request).package_version})
