"""POST /v1/embeddings."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from llm_engine.pooling_outputs import EmbeddingOutput
from starlette.responses import Response

from llm_stack_server.context import Context
from llm_stack_server.errors import InvalidField
from llm_stack_server.pooling_calls import Call, outputs_of, read_call, truncation
from llm_stack_server.pooling_port import PoolingEngine
from llm_stack_server.schemas.pooling import EmbeddingsRequest
from llm_stack_server.views.pooling import list_answer, numbers, usage_of

router = APIRouter()
PATH = "/v1/embeddings"


@router.post(PATH)
async def embeddings(request: Request) -> Response:
    """A vector of each text, in the order of ``input``."""
    call = await read_call(request, EmbeddingsRequest, PATH)
    outputs = await embed(call)
    encoding = call.body.encoding_format

    def item(index: int, output: EmbeddingOutput) -> dict[str, Any]:
        return {"object": "embedding", "index": index, "embedding": numbers(output.embedding, encoding)}

    return await list_answer(outputs, item, {"model": call.model, "usage": usage_of(outputs)}, call.headers)


async def embed(call: Call[Any], *, per_token: bool = False) -> list[EmbeddingOutput]:
    """The vectors that the body asks for, of the texts or of their tokens.

    Raises:
        InvalidField: the model has no vectors of that length, or refused a text.
    """
    body = call.body
    check_dimensions(call.context, call.engine, body.dimensions)
    work = call.engine.embed(
        body.input,
        dimensions=body.dimensions,
        normalize=body.normalize,
        truncate=truncation(call),
        per_token=per_token,
    )
    return await outputs_of(call, work, {"texts": "input"})


def check_dimensions(context: Context, engine: PoolingEngine, dimensions: int | None) -> None:
    """Refuse short vectors of a model that was not trained for them.

    Raises:
        InvalidField: out of range, or not trained for.
    """
    size, short = engine.info.size, engine.short_vectors
    if dimensions is None or dimensions == size:
        return
    if not 0 < dimensions < size:
        raise InvalidField("dimensions", f"dimensions: must be from 1 to {size}, got {dimensions}")
    if context.settings.any_dimensions or short.allow(dimensions):
        return
    listed = f"; it was for {', '.join(map(str, short.lengths))}" if short.lengths else ""
    raise InvalidField(
        "dimensions",
        f"dimensions: nothing says that this model was trained for vectors of {dimensions} numbers, not "
        f"{size}{listed} (the server's option any_dimensions allows all)",
        code="unsupported_parameter",
    )
