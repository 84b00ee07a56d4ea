"""GET /v1/models and /v1/models/{id}."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse

from llm_stack_server.context import Context, context_of

router = APIRouter()


@router.get("/v1/models")
async def list_models(request: Request) -> JSONResponse:
    """The names under which the model is served."""
    context = context_of(request)
    context.lifecycle.require_engine()
    return JSONResponse({"object": "list", "data": [_card(context, name) for name in context.model_names()]})


@router.get("/v1/models/{model:path}")  # a path: names such as "org/model" hold slashes
async def get_model(request: Request, model: str) -> JSONResponse:
    """One of them; 404 for others."""
    context = context_of(request)
    context.lifecycle.require_engine()
    return JSONResponse(_card(context, context.check_model(model)))


def _card(context: Context, name: str) -> dict[str, Any]:
    engine = context.lifecycle.require_engine()
    return {
        "id": name,
        "object": "model",
        "created": context.started,
        "owned_by": "llm-stack",
        "root": engine.model_name,
        "max_model_len": engine.max_model_len,
    }
