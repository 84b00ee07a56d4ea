"""How vectors and scores look as JSON. Knows nothing of requests or of the engine."""

from __future__ import annotations

import asyncio
import base64
import math
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic_core import to_json
from starlette.responses import Response

from llm_stack_server.errors import ApiError

Item = TypeVar("Item")
_ITEMS_IN_LOOP = 64


def numbers(array: NDArray[np.float32], encoding_format: str | None = None) -> Any:  # noqa: ANN401 - JSON
    """An array as JSON: nested lists, or base64 of its little-endian float32 for ``base64``.

    Raises:
        ApiError: 500: the model gave something that is no number.
    """
    if not np.isfinite(array).all():
        raise _not_finite()
    if encoding_format == "base64":
        return base64.b64encode(array.astype("<f4", copy=False).tobytes()).decode()
    return array.tolist()


def number(value: float) -> float:
    """A score as JSON.

    Raises:
        ApiError: 500: the model gave something that is no number.
    """
    if not math.isfinite(value):
        raise _not_finite()
    return value


def _not_finite() -> ApiError:
    return ApiError(
        500, "the model gave values that are not finite", error_type="server_error", code="not_finite"
    )


def envelope(kind: str, model: str, outputs: list[Any]) -> dict[str, Any]:
    """What stands beside the items of an answer that is not OpenAI's."""
    return {
        "id": f"{kind}-{uuid.uuid4().hex}",
        "created": int(time.time()),
        "model": model,
        "usage": usage_of(outputs),
    }


def usage_of(outputs: Sequence[Any]) -> dict[str, int]:
    """OpenAI's ``usage`` of an answer without generated tokens."""
    tokens = sum(output.num_prompt_tokens for output in outputs)
    return {"prompt_tokens": tokens, "total_tokens": tokens}


async def list_answer(
    data: Sequence[Item],
    render: Callable[[int, Item], dict[str, Any]],
    rest: Mapping[str, Any],
    headers: Mapping[str, str],
) -> Response:
    """``{"object": "list", "data": [...], **rest}``; many items are made in a thread, one after the other."""

    def made() -> bytes:
        items = b",".join(to_json(render(index, item)) for index, item in enumerate(data))
        return b'{"object":"list","data":[' + items + b"]," + to_json(dict(rest))[1:]

    body = made() if len(data) <= _ITEMS_IN_LOOP else await asyncio.to_thread(made)
    return Response(body, media_type="application/json", headers=dict(headers))
