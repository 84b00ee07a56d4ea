"""Says whether an answer is one that a good server gives. Knows the API's shapes, and nothing of sockets."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, NoReturn

from scripts.server_fuzz.cases import Case
from scripts.server_fuzz.client import Answer

# 5xx by design: the code of the body tells why.
INTENDED = {503: {"starting", "draining", "engine_restarting"}, 504: {"deadline_exceeded"}}
_REFUSALS = frozenset({400, 401, 403, 404, 405, 406, 408, 409, 413, 415, 429, 431})
# Refused for no single field: the body as such, or the model.
_NO_FIELD = frozenset(
    {
        "invalid_json",
        "invalid_utf8",
        "invalid_http",
        "not_cancellable",
        "unsupported_task",
        "previous_response_not_found",
    }
)
_STREAM_ENDS = ("response.completed", "response.incomplete", "response.failed", "message_stop", "error")


def faults(case: Case, answer: Answer) -> Iterator[str]:
    """What is wrong with the answer; nothing where it is as it should be."""
    if answer.status == 0:
        if case.is_well_formed():
            yield f"no answer to a well-formed request: {answer.fault}"
        return
    if answer.fault:
        if case.is_well_formed():
            yield f"a broken answer: {answer.fault}"
        return
    status = answer.status
    if status >= 500 and _code(answer) not in INTENDED.get(status, set()):
        yield f"status {status} is not intended"
        return
    if case.method == "HEAD" or status == 304:
        return
    if status == 200:
        yield from _success_faults(answer)
    elif status == 202 and case.path == "/mcp":
        return  # a notification
    elif status < 500 and status not in _REFUSALS:
        yield f"status {status} is none of this API"
    else:
        yield from _error_faults(case, answer)


def _code(answer: Answer) -> str:
    try:
        return str(json.loads(answer.body)["error"]["code"])
    except (ValueError, KeyError, TypeError):
        # Anthropic's errors have no code.
        kinds = {"overloaded_error": "engine_restarting", "timeout_error": "deadline_exceeded"}
        text = answer.body.decode(errors="replace")
        return next((code for kind, code in kinds.items() if f'"{kind}"' in text), "")


def _error_faults(case: Case, answer: Answer) -> Iterator[str]:
    if answer.headers.get("content-type") != "application/json":
        yield f"an error of type {answer.headers.get('content-type')}"
        return
    try:
        body = _strict_json(answer.body)
    except ValueError as why:
        yield f"an error that is not JSON: {why}"
        return
    error = body.get("error") if isinstance(body, dict) else None
    if isinstance(error, dict) and isinstance(error.get("code"), int) and body.get("jsonrpc") == "2.0":
        if not error.get("message"):
            yield "a JSON-RPC error without message"
        return  # MCP
    if not isinstance(error, dict) or not isinstance(error.get("message"), str) or not error["message"]:
        yield "an error without message"
        return
    if not isinstance(error.get("type"), str):
        yield "an error without type"
    is_anthropic = case.path.startswith("/v1/messages") and "x-request-id" in answer.headers
    if is_anthropic and body.get("type") != "error":
        yield "an error that is not of Anthropic's shape"
    yield from _field_faults(case, answer.status, error, is_anthropic=is_anthropic)


def _field_faults(case: Case, status: int, error: dict[str, Any], *, is_anthropic: bool) -> Iterator[str]:
    """A refusal of one wrong field must name it."""
    if status != 400 or not case.field or error.get("code") in _NO_FIELD:
        return
    if is_anthropic and "valid JSON" in error["message"]:
        return
    if not is_anthropic and error.get("param") is None and case.field not in error["message"]:
        yield f"a refusal of {case.field} that names no field"


def _success_faults(answer: Answer) -> Iterator[str]:
    kind = answer.headers.get("content-type", "").split(";")[0]
    if kind == "application/json":
        try:
            _strict_json(answer.body)
        except ValueError as error:
            yield f"a body that is not JSON: {error}"
    elif kind == "text/event-stream":
        yield from _stream_faults(answer.body)
    elif not kind.startswith(("text/", "application/openmetrics-text", "image/svg")):
        yield f"an answer of type {kind!r}"


def _stream_faults(body: bytes) -> Iterator[str]:
    frames = body.decode("utf-8", "replace").split("\n\n")
    if frames[-1]:
        yield "a stream that ends within a frame"
        return
    last = frames[-2].rpartition("data: ")[2]
    if last == "[DONE]":
        frames.pop(-2)
    else:
        try:
            event = _strict_json(last.encode())
        except ValueError:
            event = {}
        if event.get("type") not in _STREAM_ENDS and "error" not in event:
            yield "a stream without end mark or error"
    for frame in frames[:-1]:
        data = frame.rpartition("data: ")[2]
        try:
            _strict_json(data.encode())
        except ValueError as error:
            yield f"a frame that is not JSON: {error}"
            return


def _strict_json(text: bytes) -> Any:  # noqa: ANN401 -- as json.loads
    return json.loads(text.decode("utf-8"), parse_constant=_refuse)


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")
