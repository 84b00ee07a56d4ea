"""The lines of a batch: what goes in, what comes out, for which routes. Knows nothing of files."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import msgspec
from pydantic_core import from_json

BATCH_URLS = ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/embeddings")
_FIELDS = frozenset({"custom_id", "method", "url", "body"})
_SHOWN_CHARS = 100


@dataclass(frozen=True, slots=True)
class BatchRequest:
    """A line that can be run.

    Attributes:
        number: Its place in the file, from 1.
        custom_id: The name that its answer bears.
        url: The route.
        body: What is posted to it, as JSON.
    """

    number: int
    custom_id: str
    url: str
    body: bytes


@dataclass(frozen=True, slots=True)
class BadLine:
    """A line that cannot be run.

    Attributes:
        number: Its place in the file, from 1.
        custom_id: Its name, where it could be read.
        code: A stable short name of the fault.
        param: The field at fault, or None for the line as a whole.
        message: What is wrong, for a person.
    """

    number: int
    custom_id: str | None
    code: str
    param: str | None
    message: str


@dataclass(frozen=True, slots=True)
class Reply:
    """What a route answered."""

    status: int
    request_id: str
    body: dict[str, Any]

    @property
    def is_ok(self) -> bool:
        """Whether the request ran."""
        return 200 <= self.status < 300

    @property
    def error_code(self) -> str | None:
        """The code of an error answer."""
        error = self.body.get("error")
        return error.get("code") if isinstance(error, dict) else None

    @property
    def output_tokens(self) -> int:
        """Tokens that were generated, in either API's words."""
        usage = self.body.get("usage")
        if not isinstance(usage, dict):
            return 0
        return int(usage.get("completion_tokens") or usage.get("output_tokens") or 0)


def read_line(number: int, raw: bytes) -> BatchRequest | BadLine:
    """The request that a line holds, or why it holds none. The body is the route's to judge."""
    try:
        value = from_json(raw, allow_inf_nan=False)
    except ValueError as error:
        return BadLine(number, None, "invalid_json", None, f"the line is not valid JSON: {error}")
    if not isinstance(value, dict):
        return BadLine(number, None, "invalid_json", None, "the line must be a JSON object")
    custom_id = value.get("custom_id")
    if not isinstance(custom_id, str) or not custom_id:
        return BadLine(
            number,
            None,
            "invalid_value",
            "custom_id",
            f"custom_id: must be a string that is not empty, got {_shown(custom_id)}",
        )
    fault = _fault(value)
    if fault is not None:
        param, message = fault
        return BadLine(number, custom_id, "invalid_value", param, f"{param}: {message}")
    try:
        # As it stands, not written anew: the route must see what a client would have sent.
        body = bytes(msgspec.json.decode(raw, type=dict[str, msgspec.Raw])["body"])
    except msgspec.DecodeError as error:
        return BadLine(number, custom_id, "invalid_json", None, f"the line is not valid JSON: {error}")
    return BatchRequest(number, custom_id, value["url"], body)


def answer_line(request: BatchRequest, reply: Reply) -> str:
    """The line of the output for an answer, an error of the route included."""
    response = {"status_code": reply.status, "request_id": reply.request_id, "body": reply.body}
    return _line(request.number, request.custom_id, response, None)


def error_line(bad: BadLine) -> str:
    """The line of the output for a line that was not run."""
    error = {"code": bad.code, "message": bad.message, "param": bad.param, "line": bad.number}
    return _line(bad.number, bad.custom_id, None, error)


def line_id(number: int) -> str:
    """The ``id`` of the output's line for input line ``number``: the same in every run."""
    return f"batch_req_{number}"


def _line(number: int, custom_id: str | None, response: object, error: object) -> str:
    line = {"id": line_id(number), "custom_id": custom_id, "response": response, "error": error}
    return json.dumps(line, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def _fault(value: dict[str, Any]) -> tuple[str, str] | None:
    """The first field that is wrong, and why; None where all are right."""
    method, url, body = value.get("method"), value.get("url"), value.get("body")
    if method != "POST":
        return "method", f"must be 'POST', got {_shown(method)}"
    if url not in BATCH_URLS:
        return "url", f"must be one of {', '.join(BATCH_URLS)}, got {_shown(url)}"
    if not isinstance(body, dict):
        return "body", f"must be a JSON object, got {_shown(body)}"
    if body.get("stream"):
        return "body.stream", "an answer in a file is whole; leave it out"
    unknown = sorted(value.keys() - _FIELDS)
    if unknown:
        return unknown[0][:_SHOWN_CHARS], f"unknown field; a line has {', '.join(sorted(_FIELDS))}"
    return None


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN_CHARS else text[:_SHOWN_CHARS] + "..."
