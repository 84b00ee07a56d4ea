"""POST /classify."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from llm_engine.pooling_outputs import ClassificationOutput
from starlette.responses import Response

from llm_stack_server.pooling_calls import outputs_of, read_call, truncation
from llm_stack_server.schemas.pooling import ClassifyRequest
from llm_stack_server.views.pooling import envelope, list_answer, numbers

router = APIRouter()
PATH = "/classify"


@router.post(PATH)
async def classify(request: Request) -> Response:
    """The class of each text with all probabilities; of a model that classifies tokens, those of each."""
    call = await read_call(request, ClassifyRequest, PATH)
    work = call.engine.classify(call.body.input, truncate=truncation(call))
    outputs = await outputs_of(call, work, {"texts": "input"})
    per_token = call.engine.info.per_token

    def item(index: int, output: ClassificationOutput) -> dict[str, Any]:
        label = {"labels": list(output.token_labels)} if per_token else {"label": output.label}
        return {
            "index": index,
            **label,
            "probs": numbers(output.probabilities),
            "num_classes": len(output.labels),
        }

    return await list_answer(outputs, item, envelope("classify", call.model, outputs), call.headers)
