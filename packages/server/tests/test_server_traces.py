"""Spans of requests as a collector gets them, over OTLP by HTTP and a real socket."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx
import pytest
from llm_engine.errors import RequestFailed
from llm_stack_server.app import create_app
from llm_stack_server.errors import StartupError
from llm_stack_server.observing.outlets import Outlets
from llm_stack_server.observing.trace_context import Sampler, TraceContext, trace_context_of
from llm_stack_server.settings import ServerSettings
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status
from server_access_log import logged

MARK = "pineapple-7731"
CHAT = {"messages": [{"role": "user", "content": MARK}], "max_tokens": 5, "temperature": 0.5}
TRACE_ID, PARENT_ID = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
SAMPLED = {"traceparent": f"00-{TRACE_ID}-{PARENT_ID}-01"}
NOT_SAMPLED = {"traceparent": f"00-{TRACE_ID}-{PARENT_ID}-00"}


class Collector:
    """Takes exports and keeps their spans; `status` is what it answers."""

    def __init__(self):
        self.spans, self.resources, self.raw, self.status = [], [], b"", 200
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                body = self.rfile.read(int(self.headers["content-length"]))
                if collector.status == 200:
                    collector.take(body)
                self.send_response(collector.status)
                self.end_headers()

            def log_message(self, *_arguments):
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/v1/traces"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def take(self, body):
        self.raw += body
        for of_resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            self.resources.append(values(of_resource.resource.attributes))
            for of_scope in of_resource.scope_spans:
                self.spans += of_scope.spans

    def stop(self):
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def collector():
    made = Collector()
    yield made
    made.stop()


@pytest.fixture
def traced(engine, collector):
    """Runs requests against an application that traces; returns when all spans are there."""

    async def run(*requests, **settings):
        options = ServerSettings(otlp_traces_endpoint=collector.url, **settings)
        app = create_app(options, engine)
        context = app.state.context
        outlets = Outlets(options, context.journal, context.metrics, 2)
        transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
        try:
            async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
                for method, path, more in requests:
                    await client.request(method, path, **more)
        finally:
            await asyncio.to_thread(outlets.close)
        return context.metrics

    return run


def values(attributes):
    found = {}
    for attribute in attributes:
        kind = attribute.value.WhichOneof("value")
        value = getattr(attribute.value, kind)
        found[attribute.key] = (
            [item.string_value for item in value.values] if kind == "array_value" else value
        )
    return found


def chat(headers=(), **fields):
    return "POST", "/v1/chat/completions", {"json": CHAT | fields, "headers": dict(headers)}


async def test_the_tree_of_a_request(traced, collector):
    begun_ns = time.time_ns()
    await traced(chat(SAMPLED, stream=True))
    ended_ns = time.time_ns()
    by_name = {span.name: span for span in collector.spans}
    assert list(by_name) == ["chat double", "queue", "prefill", "decode"]
    server = by_name["chat double"]
    assert server.kind == Span.SPAN_KIND_SERVER
    assert (server.trace_id.hex(), server.parent_span_id.hex()) == (TRACE_ID, PARENT_ID)
    assert len({span.span_id for span in collector.spans}) == 4
    children = [by_name[name] for name in ("queue", "prefill", "decode")]
    for child in children:
        assert (child.trace_id, child.parent_span_id) == (server.trace_id, server.span_id)
    queue, prefill, decode = children
    marks = [
        begun_ns,
        server.start_time_unix_nano,
        queue.start_time_unix_nano,
        queue.end_time_unix_nano,
        prefill.end_time_unix_nano,
        decode.end_time_unix_nano,
        server.end_time_unix_nano,
        ended_ns,
    ]
    assert marks == sorted(marks)
    assert prefill.start_time_unix_nano == queue.end_time_unix_nano
    assert decode.start_time_unix_nano == prefill.end_time_unix_nano
    [event] = server.events
    assert (event.name, event.time_unix_nano) == ("first_token", prefill.end_time_unix_nano)
    assert server.status.code == Status.STATUS_CODE_UNSET


async def test_attributes(traced, collector):
    await traced(chat(stream=True), api_key=())
    found = values(collector.spans[0].attributes)
    timed = {name: found.pop(name) for name in ("gen_ai.response.time_to_first_chunk", "llm_stack.queue_s")}
    assert all(0 <= value < 10 for value in timed.values())
    assert len(found.pop("llm_stack.request_id")) == 32
    assert found.pop("llm_stack.bytes_sent") > 100
    assert found == {
        "llm_stack.outcome": "finished",
        "http.request.method": "POST",
        "http.route": "/v1/chat/completions",
        "http.response.status_code": 200,
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "llm-stack",
        "gen_ai.request.model": "double",
        "gen_ai.response.model": "double",
        "gen_ai.request.stream": True,
        "gen_ai.request.max_tokens": 5,
        "gen_ai.request.temperature": 0.5,
        "gen_ai.request.top_p": 1.0,
        "gen_ai.usage.input_tokens": 32,
        "gen_ai.usage.output_tokens": 5,
        "gen_ai.usage.cache_read.input_tokens": 2,
        "gen_ai.response.finish_reasons": ["length"],
    }
    assert collector.resources[0]["service.name"] == "llm-stack"
    assert MARK.encode() not in collector.raw


async def test_errors(traced, collector, engine):
    """What the server did wrong is an error of its span; what the client did is not."""
    engine.error, engine.error_after = RequestFailed("the device is lost", "r"), 2
    await traced(chat(stream=True), chat(temperature=-1), ("GET", "/nowhere", {}))
    failed, invalid, missing = (span for span in collector.spans if span.kind == Span.SPAN_KIND_SERVER)
    assert (failed.status.code, failed.status.message) == (Status.STATUS_CODE_ERROR, "request_failed")
    assert values(failed.attributes)["error.type"] == "request_failed"
    assert invalid.status.code == missing.status.code == Status.STATUS_CODE_UNSET
    assert values(invalid.attributes)["error.type"] == "invalid_value"
    assert missing.name == "GET unmatched"


async def test_a_deadline_in_the_queue(traced, collector, engine):
    engine.gate = asyncio.Event()
    await traced(chat({"x-timeout-s": "0.05"}))
    server, *children = collector.spans
    assert (server.status.code, server.status.message) == (Status.STATUS_CODE_ERROR, "deadline_exceeded")
    assert [child.name for child in children] == ["queue", "prefill"]


async def test_the_client_decides_what_is_sampled(traced, collector):
    await traced(chat(NOT_SAMPLED), chat(), chat(SAMPLED), traces_sample_ratio=0.0)
    assert {span.trace_id.hex() for span in collector.spans} == {TRACE_ID}


async def test_probes_have_no_spans(traced, collector):
    await traced(*[("GET", path, {}) for path in ("/health", "/health/ready", "/metrics", "/version")])
    assert [span.name for span in collector.spans] == ["GET /version"]


async def test_ids_stand_in_the_access_log(engine, collector):
    app = create_app(ServerSettings(otlp_traces_endpoint=collector.url, access_log="json"), engine)
    transport = httpx.ASGITransport(app=app)
    with logged(app) as lines:
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            await client.post("/v1/chat/completions", json=CHAT, headers=SAMPLED)
    [record] = lines.records("json")
    assert record["trace_id"] == TRACE_ID
    assert bytes.fromhex(record["span_id"]) == collector.spans[0].span_id


@pytest.mark.parametrize("answers", [False, True], ids=["away", "refuses"])
async def test_a_collector_that_takes_nothing(traced, collector, answers):
    """Requests go on as before, and what was lost is counted."""
    collector.status = 400
    if not answers:
        collector.stop()
        collector.stop = lambda: None
    begun_s = time.monotonic()
    metrics = await traced(*[chat() for _ in range(20)])
    assert time.monotonic() - begun_s < 6
    assert b"llm_stack_trace_requests_dropped_total 20.0" in metrics.render("")[0]
    assert collector.spans == []


# Without a collector


def test_traceparent():
    def read(value, sampler=None):
        return trace_context_of([(b"traceparent", value)], sampler)

    good = f"00-{TRACE_ID}-{PARENT_ID}-01".encode()
    assert read(good) == TraceContext(TRACE_ID, PARENT_ID)
    assert read(b"01" + good[2:] + b"-more") == TraceContext(TRACE_ID, PARENT_ID)
    for bad in (
        b"",
        b"ff" + good[2:],
        good + b"-more",
        good.upper(),
        good[:-1],
        good + b"\n",
        f"00-{'0' * 32}-{PARENT_ID}-01".encode(),
        f"00-{TRACE_ID}-{'0' * 16}-01".encode(),
    ):
        assert read(bad) is None
        assert read(bad, Sampler(1.0)).parent_id is None
    sampled = sum(trace_context_of([], Sampler(0.25)).span_id is not None for _ in range(2000))
    assert 350 < sampled < 650


def test_wrong_options(monkeypatch):
    for wrong in ("localhost:4318", "ftp://x/", "http://", "http://a b"):
        with pytest.raises(StartupError, match="otlp_traces_endpoint"):
            ServerSettings(otlp_traces_endpoint=wrong)
    for ratio in (-0.1, 1.1, float("nan")):
        with pytest.raises(StartupError, match="traces_sample_ratio"):
            ServerSettings(traces_sample_ratio=ratio)
    monkeypatch.setitem(sys.modules, "llm_stack_server.observing.traces", None)
    options = ServerSettings(otlp_traces_endpoint="http://localhost:4318/v1/traces")
    context = create_app(options).state.context
    with pytest.raises(StartupError, match=r"otlp_traces_endpoint: .*llm-stack-server\[tracing\]"):
        Outlets(options, context.journal, context.metrics, 2)


def test_without_traces_nothing_of_opentelemetry_is_loaded():
    program = (
        "import sys, llm_stack_server.serve, llm_stack_server.app as app;"
        "from llm_stack_server.settings import ServerSettings as S; c = app.create_app(S()).state.context;"
        "from llm_stack_server.observing.outlets import Outlets; Outlets(S(), c.journal, c.metrics, 2);"
        "heavy = ('opentelemetry.sdk', 'opentelemetry.exporter', 'google.protobuf');"  # mcp loads the API
        "print([name for name in sys.modules if name.startswith(heavy)])"
    )
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
