"""POST /pooling: what the model gives, as it is."""

from __future__ import annotations

from typing import Any

import numpy as np
from fastapi import APIRouter, Request
from numpy.typing import NDArray
from starlette.responses import Response

from llm_stack_server.errors import UnsupportedField
from llm_stack_server.pooling_calls import Call, outputs_of, read_call, truncation
from llm_stack_server.routes.embeddings import embed
from llm_stack_server.schemas.pooling import PoolingRequest
from llm_stack_server.views.pooling import envelope, list_answer, numbers

router = APIRouter()
PATH = "/pooling"


@router.post(PATH)
async def pooling(request: Request) -> Response:
    """Vectors of texts or tokens; of a model that scores, raw scores of what it scores."""
    call = await read_call(request, PoolingRequest, PATH)
    encoding = call.body.encoding_format
    outputs: list[Any]
    arrays: list[NDArray[np.float32]]
    if call.engine.info.labels:
        outputs = await _rewards(call)
        arrays = [output.rewards for output in outputs]
    else:
        outputs = await embed(call, per_token=call.body.task == "token_embed")
        arrays = [output.embedding for output in outputs]

    def item(index: int, array: NDArray[np.float32]) -> dict[str, Any]:
        return {
            "object": "pooling",
            "index": index,
            "data": numbers(array, encoding),
            "shape": list(array.shape),
        }

    return await list_answer(arrays, item, envelope("pool", call.model, outputs), call.headers)


async def _rewards(call: Call[PoolingRequest]) -> list[Any]:
    for name in ("dimensions", "normalize", "task"):
        if getattr(call.body, name) is not None:
            raise UnsupportedField(name, f"{name} is for vectors; this model gives scores")
    work = call.engine.reward(call.body.input, truncate=truncation(call))
    return await outputs_of(call, work, {"texts": "input"})
