"""What is known of one request when it ends: times, sizes, names. Never a text, a key or a raw path."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from llm_engine.sampling_params import SamplingParams

from llm_stack_server.asgi import Scope
from llm_stack_server.errors import ApiError, DeadlineExceeded
from llm_stack_server.observing.trace_context import TraceContext

Outcome: TypeAlias = Literal["finished", "aborted", "deadline", "error"]

RECORD_STATE = "record"
UNMATCHED = "unmatched"
_CLIENT_ERROR = 400
_SERVER_ERROR = 500


@dataclass(slots=True, kw_only=True, eq=False)
class RequestRecord:
    """One request. Filled while it runs, read when it has ended. Times of the same clock, in seconds.

    Attributes:
        request_id: As in the header ``x-request-id``.
        method: The HTTP method, "other" for an unusual one, "gRPC" for a call.
        trace: Its place in a trace, if it has one.
        began_unix_ns: When its head had come.
        began_s: The same, by `time.perf_counter`.
        ended_s: When its last byte was handed to the connection.
        route: The template that it matched, such as ``/v1/responses/{response_id}``.
        status: The HTTP status, or the name of the gRPC status; 0 where none was sent.
        key_name: Name of its API key.
        model: The served name by which it asked for the model.
        params: What it asks of the model; None where nothing is generated.
        is_stream: Whether the answer is a stream of events.
        bytes_sent: Of the answer's body.
        prompt_tokens: Of all prompts.
        cached_tokens: Of these, from the prefix cache.
        output_tokens: Of all choices.
        submitted_s: When it was checked and went to the queue.
        admitted_s: When the server's queue let it in.
        engine_queue_s: How long it then waited for its first step; known with the first token.
        first_token_s: When its first token came.
        generated_s: When its generation ended.
        finish_reasons: Of each choice that ended.
        error: Code of what was answered instead, or ended a stream.
        is_server_fault: Whether that is the server's fault.
        client_left: Whether the client had gone before the end.
    """

    request_id: str
    method: str
    trace: TraceContext | None = None
    began_unix_ns: int = field(default_factory=time.time_ns)
    began_s: float = field(default_factory=time.perf_counter)
    ended_s: float = 0.0
    route: str = UNMATCHED
    status: int | str = 0
    key_name: str | None = None
    model: str | None = None
    params: SamplingParams | None = None
    is_stream: bool = False
    bytes_sent: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    submitted_s: float | None = None
    admitted_s: float | None = None
    engine_queue_s: float = 0.0
    first_token_s: float | None = None
    generated_s: float | None = None
    finish_reasons: list[str] = field(default_factory=list)
    error: str | None = None
    is_server_fault: bool = False
    client_left: bool = False

    def asks(self, model: str, params: SamplingParams | None) -> None:
        """The request was checked: what it asks of the model."""
        self.model = model
        self.params = params

    def fail(self, error: ApiError) -> None:
        """The answer, or the end of the stream, is an error."""
        self.error = error.code or f"status_{error.status}"
        self.is_server_fault = error.status >= _SERVER_ERROR

    def end(self) -> None:
        """The request has ended now."""
        self.ended_s = time.perf_counter()

    @property
    def outcome(self) -> Outcome:
        """How it ended; "aborted" is by the client."""
        if self.error == DeadlineExceeded.CODE:
            return "deadline"
        if self.error is not None:
            return "error"
        if self.client_left:
            return "aborted"
        is_error = isinstance(self.status, int) and self.status >= _CLIENT_ERROR
        return "error" if is_error else "finished"

    @property
    def duration_s(self) -> float:
        """From its head to its end."""
        return self.ended_s - self.began_s

    @property
    def ttft_s(self) -> float | None:
        """From its head to its first token."""
        return None if self.first_token_s is None else self.first_token_s - self.began_s

    @property
    def queue_s(self) -> float | None:
        """Time in the queues of server and engine; None where it was not let in."""
        if self.submitted_s is None or self.admitted_s is None:
            return None
        return self.admitted_s - self.submitted_s + self.engine_queue_s


def record_of(scope: Scope) -> RequestRecord | None:
    """The record of the request; None in an application without `ObservingMiddleware`."""
    record: RequestRecord | None = scope.get("state", {}).get(RECORD_STATE)
    return record


def note_error(scope: Scope, error: ApiError) -> None:
    """The request is answered with ``error``."""
    record = record_of(scope)
    if record is not None:
        record.fail(error)


def note_sent(scope: Scope, num_bytes: int) -> None:
    """So many bytes of the answer's body went to the connection past `ObservingMiddleware`."""
    record = record_of(scope)
    if record is not None:
        record.bytes_sent += num_bytes
