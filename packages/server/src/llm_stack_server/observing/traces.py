"""Spans of requests for an OpenTelemetry collector, over OTLP by HTTP. Needs the extra ``tracing``.

Names are those of OpenTelemetry's conventions for generative AI and for HTTP. Spans are made from records, in
a thread, after their requests: nothing of OpenTelemetry runs while a request does.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.metadata import version

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, TraceFlags
from opentelemetry.trace.status import Status, StatusCode
from opentelemetry.util.types import AttributeValue

from llm_stack_server.auth import OPEN_PATHS
from llm_stack_server.observing.background import BackgroundQueue
from llm_stack_server.observing.record import RequestRecord
from llm_stack_server.observing.trace_context import TraceContext

_SCOPE = "llm_stack_server"
_CAPACITY = 4096  # requests
_BATCH = 128
_LINGER_S = 1.0
_EXPORT_S = 10.0
_CLOSE_S = 3.0
_GIVE_UP_S = 1.0
_OPERATIONS = {
    "/v1/chat/completions": "chat",
    "/v1/messages": "chat",
    "/v1/responses": "chat",
    "/v1/completions": "text_completion",
    "grpc:Generate": "text_completion",
    "grpc:GenerateStream": "text_completion",
    "/v1/embeddings": "embeddings",
    "grpc:Embed": "embeddings",
}

_UNTRACED = OPEN_PATHS | {"/metrics"}


class TraceExport:
    """Sends the spans of sampled requests. A collector that is away costs spans and nothing else."""

    def __init__(
        self, endpoint: str, on_dropped: Callable[[int], None], *, capacity: int = _CAPACITY
    ) -> None:
        """Send to ``endpoint``, as http://localhost:4318/v1/traces; tell ``on_dropped`` of lost requests.

        Of the environment the exporter reads OpenTelemetry's own variables for headers, certificates and
        compression, and the resource its attributes.
        """
        self._exporter = OTLPSpanExporter(endpoint=endpoint, timeout=_EXPORT_S)
        self._resource = Resource.create(
            {"service.name": "llm-stack", "service.version": version("llm-stack-server")}
        )
        self._queue: BackgroundQueue[RequestRecord] = BackgroundQueue(
            "trace export", self._export, on_dropped, capacity=capacity, batch=_BATCH, linger_s=_LINGER_S
        )

    def __call__(self, record: RequestRecord) -> None:
        """Send the spans of the request, if it has any; nobody asks how long a probe took."""
        is_sampled = record.trace is not None and record.trace.span_id is not None
        if is_sampled and record.route not in _UNTRACED:
            self._queue.put(record)

    def close(self) -> None:
        """Send what waits; give up an export that goes on."""
        self._queue.close(_CLOSE_S)
        self._exporter.shutdown()  # type: ignore[no-untyped-call]
        self._queue.close(_GIVE_UP_S)  # what it gave up is counted

    def _export(self, records: Sequence[RequestRecord]) -> int:
        spans = [span for record in records for span in spans_of(record, self._resource)]
        result = self._exporter.export(spans)
        return 0 if result is SpanExportResult.SUCCESS else len(records)


def spans_of(record: RequestRecord, resource: Resource) -> Iterator[ReadableSpan]:
    """The request's span, then those of its parts: queue, prefill, decode."""
    trace = record.trace
    assert trace is not None
    assert trace.span_id is not None
    own = _context(trace, trace.span_id, is_remote=False)
    parent = None if trace.parent_id is None else _context(trace, trace.parent_id, is_remote=True)
    scope = InstrumentationScope(_SCOPE, resource.attributes["service.version"])  # type: ignore[arg-type]
    events = []
    if record.first_token_s is not None:
        events.append(Event("first_token", timestamp=_unix_ns(record, record.first_token_s)))
    yield ReadableSpan(
        _name(record),
        context=own,
        parent=parent,
        resource=resource,
        attributes=_attributes(record),
        events=events,
        kind=SpanKind.SERVER,
        status=_status(record),
        start_time=record.began_unix_ns,
        end_time=_unix_ns(record, record.ended_s),
        instrumentation_scope=scope,
    )
    for name, begin_s, end_s in _parts(record):
        yield ReadableSpan(
            name,
            context=_context(trace, os.urandom(8).hex(), is_remote=False),
            parent=own,
            resource=resource,
            start_time=_unix_ns(record, begin_s),
            end_time=_unix_ns(record, end_s),
            instrumentation_scope=scope,
        )


def _parts(record: RequestRecord) -> Iterator[tuple[str, float, float]]:
    """Name, begin and end. The engine tells of its queue with the first token: without one, it is prefill."""
    if record.submitted_s is None:
        return
    end_s = record.ended_s if record.generated_s is None else record.generated_s
    if record.admitted_s is None:
        yield "queue", record.submitted_s, end_s
        return
    begun_s = record.admitted_s + record.engine_queue_s
    yield "queue", record.submitted_s, begun_s
    if record.params is None:
        yield "compute", begun_s, end_s
    elif record.first_token_s is None:
        yield "prefill", begun_s, end_s
    else:
        yield "prefill", begun_s, record.first_token_s
        yield "decode", record.first_token_s, end_s


def _name(record: RequestRecord) -> str:
    operation = _OPERATIONS.get(record.route)
    if operation is not None and record.model is not None:
        return f"{operation} {record.model}"
    return f"{record.method} {record.route}"


def _attributes(record: RequestRecord) -> Mapping[str, AttributeValue]:
    params = record.params
    found: dict[str, AttributeValue | None] = {
        "llm_stack.request_id": record.request_id,
        "llm_stack.outcome": record.outcome,
        "llm_stack.key_name": record.key_name,
        "llm_stack.bytes_sent": record.bytes_sent,
        "error.type": record.error,
        **_transport(record),
    }
    if record.model is not None:
        found |= {
            "gen_ai.operation.name": _OPERATIONS.get(record.route),
            "gen_ai.provider.name": "llm-stack",
            "gen_ai.request.model": record.model,
            "gen_ai.response.model": record.model,
            "gen_ai.usage.input_tokens": record.prompt_tokens,
            "gen_ai.usage.output_tokens": record.output_tokens,
            "gen_ai.usage.cache_read.input_tokens": record.cached_tokens,
            "gen_ai.response.finish_reasons": record.finish_reasons or None,
            "gen_ai.response.time_to_first_chunk": record.ttft_s,
            "llm_stack.queue_s": record.queue_s,
        }
    if params is not None:
        found |= {
            "gen_ai.request.stream": record.is_stream,
            "gen_ai.request.max_tokens": params.max_tokens,
            "gen_ai.request.temperature": params.temperature,
            "gen_ai.request.top_p": params.top_p,
            "gen_ai.request.top_k": params.top_k if params.top_k > 0 else None,
            "gen_ai.request.seed": params.seed,
            "gen_ai.request.choice.count": params.n if params.n != 1 else None,
        }
    return {name: value for name, value in found.items() if value is not None}


def _transport(record: RequestRecord) -> Mapping[str, AttributeValue | None]:
    if isinstance(record.status, str):
        return {"rpc.system": "grpc", "rpc.method": record.route, "rpc.response.status_code": record.status}
    return {
        "http.request.method": record.method,
        "http.route": record.route,
        "http.response.status_code": record.status,
    }


def _status(record: RequestRecord) -> Status:
    """An error where it is the server's; what its client did wrong leaves the server's span as it is."""
    if record.outcome in ("deadline", "error") and record.is_server_fault:
        return Status(StatusCode.ERROR, record.error)
    return Status(StatusCode.UNSET)


def _context(trace: TraceContext, span_id: str, *, is_remote: bool) -> SpanContext:
    return SpanContext(
        int(trace.trace_id, 16),
        int(span_id, 16),
        is_remote=is_remote,
        trace_flags=TraceFlags(TraceFlags.SAMPLED),
    )


def _unix_ns(record: RequestRecord, at_s: float) -> int:
    return record.began_unix_ns + int((at_s - record.began_s) * 1e9)
