"""What the server measures and shows to Prometheus. One registry an application; no global state."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import get_args

from llm_engine.core.core_state import CorePhase, CoreState
from llm_engine.stats import EngineStats
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from llm_stack_server.asgi import App, Message, Receive, Scope, Send
from llm_stack_server.core_totals import CoreTotals
from llm_stack_server.generation import Usage

PREFIX = "llm_stack"
_SECONDS = (
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    2.5,
    5.0,
    10.0,
    30.0,
    60.0,
    180.0,
    600.0,
)
_TOKENS = (1, 4, 16, 64, 256, 1024, 4096, 16384, 65536, 262144)
_METHODS = frozenset({"GET", "POST", "HEAD", "OPTIONS", "PUT", "DELETE", "PATCH"})


class EngineCollector(Collector):
    """Shows where the engine is in its life, its totals, and the gauges of its latest snapshot."""

    def __init__(self) -> None:
        self._snapshot: EngineStats | None = None
        self._state: CoreState | None = None
        self._totals = CoreTotals()

    def note(self, state: CoreState | None, stats: EngineStats | None) -> None:
        """Take in what the engine is doing now; None where it does not exist yet or did not answer."""
        self._state = state
        self._snapshot = None
        if state is not None and stats is not None:
            self._snapshot = self._totals.note(state.generation, stats)

    def collect(self) -> Iterator[Metric]:
        """Yield the metric families of the snapshot."""
        stats = self._snapshot
        yield GaugeMetricFamily(
            f"{PREFIX}_engine_up", "1 while the engine answers.", value=int(stats is not None)
        )
        if self._state is None:
            return
        phases = GaugeMetricFamily(
            f"{PREFIX}_engine_phase", "1 for the phase that the engine is in.", labels=["phase"]
        )
        for phase in get_args(CorePhase):
            phases.add_metric([phase], int(phase == self._state.phase))
        yield phases
        yield _counter("core_deaths", "Times that the engine's process has died.", self._state.deaths)
        if stats is not None:
            yield from _gauges(stats)
        yield from _engine_counters(self._totals.totals)


def _gauges(stats: EngineStats) -> Iterator[Metric]:
    yield _gauge("requests_running", "Requests that hold a slot.", stats.running)
    yield _gauge("requests_waiting", "Requests in the queue.", stats.waiting)
    blocks = GaugeMetricFamily(f"{PREFIX}_kv_blocks", "KV-cache blocks by state.", labels=["state"])
    blocks.add_metric(["free"], stats.kv_blocks_free)
    blocks.add_metric(["cached"], stats.kv_blocks_cached)
    blocks.add_metric(["used"], stats.kv_blocks_used)
    yield blocks
    usage = stats.kv_blocks_used / stats.kv_blocks_total if stats.kv_blocks_total else 0.0
    yield _gauge("kv_cache_usage_ratio", "Share of the KV blocks that requests hold, 0 to 1.", usage)


def _engine_counters(stats: EngineStats) -> Iterator[Metric]:
    finished = CounterMetricFamily(
        f"{PREFIX}_engine_requests_finished", "Requests that ended, by reason.", labels=["reason"]
    )
    for reason, count in stats.requests_finished.items():
        finished.add_metric([reason], count)
    yield finished
    yield _counter("engine_requests_added", "Requests accepted by the engine.", stats.requests_added)
    yield _counter("engine_requests_refused", "Requests refused by the scheduler.", stats.requests_refused)
    yield _counter("prefix_cache_query_tokens", "Prompt tokens looked up.", stats.prefix_query_tokens)
    yield _counter("prefix_cache_hit_tokens", "Prompt tokens found in the cache.", stats.prefix_hit_tokens)
    yield _counter("preemptions", "Requests put back for want of blocks.", stats.preemptions)
    yield _counter("prompt_tokens", "Prompt tokens of accepted requests.", stats.prompt_tokens)
    yield _counter("generation_tokens", "Tokens generated.", stats.generated_tokens)
    yield _counter("scheduled_tokens", "Tokens run through the model.", stats.scheduled_tokens)
    yield _counter("steps", "Steps finished.", stats.steps)
    yield _counter("graph_steps", "Steps that replayed a CUDA graph.", stats.graph_steps)
    yield _counter("failed_steps", "Steps that raised.", stats.failed_steps)
    yield _counter("late_steps", "Steps handed over after the device had run out of work.", stats.late_steps)
    yield _counter("step_host_seconds", "Host time of the steps.", stats.host_s)
    phases = CounterMetricFamily(
        f"{PREFIX}_step_phase_seconds", "Host time of the steps, by phase.", labels=["phase"]
    )
    phases.add_metric(["plan"], stats.plan_s)
    phases.add_metric(["launch"], stats.launch_s)
    phases.add_metric(["result"], stats.result_s)
    phases.add_metric(["between"], stats.between_s)
    yield phases
    yield _counter("step_wait_seconds", "Time spent waiting for the device.", stats.wait_s)


def _gauge(name: str, text: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"{PREFIX}_{name}", text, value=value)


def _counter(name: str, text: str, value: float) -> CounterMetricFamily:
    return CounterMetricFamily(f"{PREFIX}_{name}", text, value=value)


class Metrics:
    """All metrics of one application."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.engine = EngineCollector()
        self.registry.register(self.engine)
        self.http_requests = self._count("http_requests", "HTTP requests.", "method", "route", "status")
        self.requests = self._count("requests", "Generation requests that ended.", "route", "outcome")
        self.ignored_fields = self._count("ignored_fields", "Unknown body fields that were ignored.", "route")
        self.refused = self._count("requests_refused", "Requests refused for overload, by reason.", "reason")
        self.cut_off = self._count("requests_cut_off", "Requests ended by a limit, by reason.", "reason")
        self.key_requests = self._count("key_requests", "Requests let in, by the name of their key.", "key")
        self.key_tokens = self._count(
            "key_tokens", "Tokens by the name of the key and kind: prompt or output.", "key", "kind"
        )
        self.ttft = self._seconds("time_to_first_token_seconds", "From a checked request to its first token.")
        self.itl = self._seconds("inter_token_latency_seconds", "Between two tokens of a choice.")
        self.e2e = self._seconds("request_latency_seconds", "From a checked request to its end.")
        self.prompt_tokens = self._tokens("request_prompt_tokens", "Prompt tokens of a request.")
        self.output_tokens = self._tokens("request_output_tokens", "Output tokens of a request.")

    def render(self, accept: str) -> tuple[bytes, str]:
        """The exposition text and its content type, in the format that ``accept`` asks for."""
        encode, content_type = choose_encoder(accept)
        return encode(self.registry), content_type

    def show(self, name: str, text: str, read: Callable[[], float]) -> None:
        """Show as a gauge what ``read`` gives whenever metrics are asked for."""
        Gauge(f"{PREFIX}_{name}", text, registry=self.registry).set_function(read)

    def meter(self, route: str) -> RequestMeter:
        """Start the clock of one generation request."""
        return RequestMeter(self, route)

    def _count(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"{PREFIX}_{name}", text, labels, registry=self.registry)

    def _seconds(self, name: str, text: str) -> Histogram:
        return Histogram(f"{PREFIX}_{name}", text, ["route"], buckets=_SECONDS, registry=self.registry)

    def _tokens(self, name: str, text: str) -> Histogram:
        return Histogram(f"{PREFIX}_{name}", text, ["route"], buckets=_TOKENS, registry=self.registry)


class RequestMeter:
    """Measures one generation request. Implements `generation.Observer`."""

    def __init__(self, metrics: Metrics, route: str, clock: Callable[[], float] = time.perf_counter) -> None:
        self._metrics = metrics
        self._route = route
        self._clock = clock
        self._start_s = clock()
        self._last_s: dict[int, float] = {}

    def tokens(self, choice: int, count: int) -> None:
        """Note ``count`` new tokens of a choice; tokens that come together share their gap."""
        now_s = self._clock()
        last_s = self._last_s.get(choice)
        if last_s is not None:
            itl = self._metrics.itl.labels(self._route)
            for _ in range(count):
                itl.observe((now_s - last_s) / count)
        elif not self._last_s:
            self._metrics.ttft.labels(self._route).observe(now_s - self._start_s)
        self._last_s[choice] = now_s

    def finished(self, outcome: str, usage: Usage) -> None:
        """Note the end of the request."""
        self._metrics.requests.labels(self._route, outcome).inc()
        self._metrics.e2e.labels(self._route).observe(self._clock() - self._start_s)
        self._metrics.prompt_tokens.labels(self._route).observe(usage.prompt_tokens)
        self._metrics.output_tokens.labels(self._route).observe(usage.completion_tokens)


class HttpMetricsMiddleware:
    """Counts every HTTP answer by method, route and status."""

    def __init__(self, app: App, metrics: Metrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the application and note the status that it sends."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        status = 500

        async def note_status(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, note_status)
        finally:
            method = scope["method"] if scope["method"] in _METHODS else "other"
            route = getattr(scope.get("route"), "path", "unmatched")  # never the raw path: clients choose it
            self._metrics.http_requests.labels(method, route, str(status)).inc()
