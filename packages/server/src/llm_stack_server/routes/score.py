"""POST /v1/score and /score."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from llm_engine.pooling_outputs import ScoreOutput
from starlette.responses import Response

from llm_stack_server.errors import InvalidField
from llm_stack_server.pooling_calls import outputs_of, read_call, truncation
from llm_stack_server.schemas.pooling import ScoreRequest
from llm_stack_server.views.pooling import envelope, list_answer, number

router = APIRouter()
PATH = "/v1/score"


@router.post(PATH)
@router.post("/score")
async def score(request: Request) -> Response:
    """How well texts go with one text, or each with its own."""
    call = await read_call(request, ScoreRequest, PATH)
    body = call.body
    first_name, second_name = ("queries", "documents") if body.text_1 is None else ("text_1", "text_2")
    first, second = getattr(body, first_name), getattr(body, second_name)
    texts = [second] if isinstance(second, str) else second
    queries = [first] if isinstance(first, str) else first
    if len(queries) == 1:
        queries = queries * len(texts)
    if len(queries) != len(texts):
        raise InvalidField(
            second_name,
            f"{second_name}: must hold as many texts as {first_name}, or {first_name} must be one; "
            f"there are {len(texts)} for {len(queries)}",
        )
    work = call.engine.score(list(zip(queries, texts, strict=True)), truncate=truncation(call))
    several = isinstance(first, list) and len(first) > 1
    outputs = await outputs_of(call, work, {"query": (first_name, several), "texts": second_name})

    def item(index: int, output: ScoreOutput) -> dict[str, Any]:
        return {"object": "score", "index": index, "score": number(output.score)}

    rest = envelope("score", call.model, outputs)
    return await list_answer(outputs, item, rest, call.headers)
