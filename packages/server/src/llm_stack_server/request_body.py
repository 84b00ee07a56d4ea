"""Reads a body into a schema: media type, UTF-8, JSON, types. Knows no single route."""

from __future__ import annotations

import asyncio
from typing import TypeVar

from fastapi import Request
from pydantic_core import from_json

from llm_stack_server.errors import ApiError, ClientDisconnected, InvalidField
from llm_stack_server.schemas.fields import RequestBody

Body = TypeVar("Body", bound=RequestBody)

_THREAD_BYTES = 128 * 1024


async def read_body(request: Request, schema: type[Body]) -> Body:
    """Parse and check the body against ``schema``.

    Raises:
        ApiError: 400 for bad UTF-8, bad JSON or wrong types (naming the field), 413 and 415.
        pydantic.ValidationError: a field is wrong; `http_errors` turns it into a 400.
    """
    _check_headers(request)
    raw = await _read(request)
    if len(raw) > _THREAD_BYTES:  # or the streams of others would stand still meanwhile
        return await asyncio.to_thread(_parse, raw, schema)
    return _parse(raw, schema)


def _parse(raw: bytes, schema: type[Body]) -> Body:
    try:
        raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InvalidField(
            None, f"the body is not valid UTF-8 (byte {error.start})", code="invalid_utf8"
        ) from None
    try:
        value = from_json(raw, allow_inf_nan=False)
    except ValueError as error:
        raise InvalidField(None, f"the body is not valid JSON: {error}", code="invalid_json") from None
    if not isinstance(value, dict):
        raise InvalidField(None, "the body must be a JSON object", code="invalid_json")
    return schema.model_validate(value)


async def _read(request: Request) -> bytes:
    body = bytearray()
    while True:
        message = await request.receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnected
        body += message.get("body", b"")
        if not message.get("more_body", False):
            return bytes(body)


def _check_headers(request: Request) -> None:
    media_type = request.headers.get("content-type", "application/json").split(";")[0].strip().lower()
    if media_type != "application/json" and not media_type.endswith("+json"):
        raise ApiError(415, "content-type must be application/json", code="unsupported_media_type")
    if request.headers.get("content-encoding", "identity").lower() != "identity":
        raise ApiError(415, "compressed bodies are not accepted", code="unsupported_content_encoding")
