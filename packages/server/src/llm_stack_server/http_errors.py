"""The one place where exceptions become HTTP answers. Knows the error types, not the routes."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse
from llm_engine.errors import (
    ContextLengthExceeded,
    EngineBusy,
    EngineDead,
    EngineRestarting,
    InvalidRequest,
    RequestFailed,
)
from llm_tokenizer import InvalidArgument, TemplateError
from pydantic import ValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response

from llm_stack_server.asgi import Scope
from llm_stack_server.errors import ApiError, ClientDisconnected, InvalidField, Unavailable
from llm_stack_server.observing.record import note_error

_LOG = logging.getLogger("llm_stack_server")
_STATUS_CLIENT_GONE = 499
_MAX_ECHO_CHARS = 100
_ANTHROPIC_PREFIX = "/v1/messages"
_ANTHROPIC_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}


def to_api_error(error: BaseException) -> ApiError:
    """The answer that stands for ``error``; unknown errors become a plain 500 without details."""
    match error:
        case ApiError():
            return error
        case ContextLengthExceeded():
            return InvalidField(error.field, str(error), code="context_length_exceeded")
        case InvalidRequest():
            return InvalidField(error.field, str(error))
        case EngineRestarting():
            return Unavailable(str(error), code=error.code, retry_after_s=math.ceil(error.retry_after_s))
        case EngineBusy():
            return ApiError(
                429,
                str(error) or "the request queue is full",
                error_type="rate_limit_error",
                code="engine_busy",
                headers={"retry-after": str(max(1, math.ceil(error.retry_after_s)))},
            )
        case EngineDead():
            return Unavailable(f"the engine is not running: {error}", code="engine_dead")
        case RequestFailed():
            return ApiError(500, str(error), error_type="server_error", code="request_failed")
        case TemplateError():
            return InvalidField(
                "messages", f"the chat template refuses these messages: {error}", code="template_error"
            )
        case InvalidArgument():
            return InvalidField(error.field, str(error))
        case ValidationError():
            return from_validation(error)
        case _:
            return ApiError(
                500, "internal error; see the server's log", error_type="server_error", code="internal_error"
            )


def from_validation(error: ValidationError) -> ApiError:
    """The first fault of a schema check, naming the field; the offending value is cut short."""
    first = error.errors(include_url=False)[0]
    param = field_path(first["loc"])
    message = str(first["msg"]).removeprefix("Value error, ")
    if first["type"] == "missing":
        return InvalidField(param, f"{param} is required", code="missing_required_parameter")
    value = repr(first.get("input"))
    shown = value if len(value) <= _MAX_ECHO_CHARS else value[:_MAX_ECHO_CHARS] + "..."
    prefix = f"{param}: " if param else ""
    return InvalidField(param, f"{prefix}{message} (got {shown})")


def field_path(location: Sequence[int | str]) -> str | None:
    """``("messages", 0, "content")`` as ``messages[0].content``; None for the body itself."""
    path = ""
    for part in location:
        if isinstance(part, int):
            path += f"[{part}]"
        else:
            path += f".{part}" if path else part
    return path or None


def log_fault(error: BaseException) -> None:
    """Log ``error`` where it is the server's fault; with the traceback where nobody foresaw it."""
    api_error = to_api_error(error)
    if api_error.status >= 500 and not isinstance(error, ApiError):
        unforeseen = error if api_error.code == "internal_error" else None
        _LOG.error("%s: %s", type(error).__name__, error, exc_info=unforeseen)


def anthropic_body(error: ApiError) -> dict[str, Any]:
    """The error as Anthropic's clients expect it."""
    default = "api_error" if error.status >= 500 else "invalid_request_error"
    kind = _ANTHROPIC_TYPES.get(error.status, default)
    return {"type": "error", "error": {"type": kind, "message": error.message}}


def error_response(error: BaseException, scope: Scope) -> JSONResponse:
    """The JSON answer for ``error``, in the shape of the API that the request's path belongs to.

    Server-side faults are logged here, once, and the request's record learns of all.
    """
    log_fault(error)
    api_error = to_api_error(error)
    note_error(scope, api_error)
    is_anthropic = scope["path"].startswith(_ANTHROPIC_PREFIX)
    body = anthropic_body(api_error) if is_anthropic else api_error.body()
    return JSONResponse(body, status_code=api_error.status, headers=api_error.headers)


async def _on_error(request: Request, error: Exception) -> Response:
    return error_response(error, request.scope)


async def _on_http_exception(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    codes = {404: "not_found", 405: "method_not_allowed"}
    api_error = ApiError(
        error.status_code,
        str(error.detail),
        code=codes.get(error.status_code),
        headers=dict(error.headers or {}),
    )
    return error_response(api_error, request.scope)


async def _on_disconnect(_request: Request, _error: Exception) -> Response:
    return Response(status_code=_STATUS_CLIENT_GONE)  # nobody reads it; it ends the ASGI cycle in order


def install(app: FastAPI) -> None:
    """Register the handlers on ``app``."""
    handled: tuple[type[Exception], ...] = (
        ApiError,
        InvalidRequest,
        EngineBusy,
        EngineDead,
        RequestFailed,
        TemplateError,
        InvalidArgument,
        ValidationError,
    )
    handlers: dict[type[Exception], Any] = dict.fromkeys(handled, _on_error)
    handlers |= {HTTPException: _on_http_exception, ClientDisconnected: _on_disconnect, Exception: _on_error}
    for kind, handler in handlers.items():
        app.add_exception_handler(kind, handler)
