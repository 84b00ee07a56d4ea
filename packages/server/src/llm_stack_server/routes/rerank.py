"""POST /v1/rerank, /v2/rerank and /rerank, in the shape of Jina's and Cohere's."""

from __future__ import annotations

import uuid
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse

from llm_stack_server.pooling_calls import outputs_of, read_call, truncation
from llm_stack_server.schemas.pooling import RerankRequest
from llm_stack_server.views.pooling import number, usage_of

router = APIRouter()
PATH = "/v1/rerank"


@router.post(PATH)
@router.post("/v2/rerank")
@router.post("/rerank")
async def rerank(request: Request) -> JSONResponse:
    """Documents by how well they go with the query, the best first."""
    call = await read_call(request, RerankRequest, PATH)
    body = call.body
    work = call.engine.score([(body.query, text) for text in body.documents], truncate=truncation(call))
    names = {"query": ("query", False), "texts": ("documents", len(body.documents) > 1)}
    outputs = await outputs_of(call, work, names)
    scores = [number(output.score) for output in outputs]
    order = sorted(range(len(scores)), key=lambda index: (-scores[index], index))
    results = []
    for index in order[: body.top_n]:
        result: dict[str, Any] = {"index": index, "relevance_score": scores[index]}
        if body.return_documents:
            result["document"] = {"text": body.documents[index]}
        results.append(result)
    answer = {
        "id": f"rerank-{uuid.uuid4().hex}",
        "object": "list",
        "model": call.model,
        "results": results,
        "usage": usage_of(outputs),
    }
    return JSONResponse(answer, headers=dict(call.headers))
