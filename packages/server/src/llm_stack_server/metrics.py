"""What the server measures and shows to Prometheus. One registry an application; no global state."""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib.metadata import version
from itertools import chain

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector
from prometheus_client.core import Metric
from prometheus_client.exposition import choose_encoder

from llm_stack_server.engine_metrics import PREFIX, EngineCollector
from llm_stack_server.gap_histogram import GapHistogram
from llm_stack_server.metric_families import Family, families_of, metrics_of

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


class Metrics:
    """All metrics of one application."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()  # without the engine, which several servers may share
        self.engine = EngineCollector()
        ProcessCollector(registry=self.registry)  # of this process, not of the engine's
        build = Gauge(
            f"{PREFIX}_build_info", "1, with the versions.", ["version", "python"], registry=self.registry
        )
        build.labels(version("llm-stack-server"), platform.python_version()).set(1)
        self.http_requests = self._count("http_requests", "HTTP requests.", "method", "route", "status")
        self.request_outcomes = self._count(
            "request_outcomes", "HTTP and gRPC requests by how they ended.", "route", "outcome", "error"
        )
        self.access_log_dropped = self._count(
            "access_log_dropped", "Lines of the access log that were lost because it was not read."
        )
        self.trace_requests_dropped = self._count(
            "trace_requests_dropped", "Requests whose spans were lost: the collector is away or too slow."
        )
        self.requests = self._count("requests", "Generation requests that ended.", "route", "outcome")
        self.ignored_fields = self._count("ignored_fields", "Unknown body fields that were ignored.", "route")
        self.refused = self._count("requests_refused", "Requests refused for overload, by reason.", "reason")
        self.cut_off = self._count("requests_cut_off", "Requests ended by a limit, by reason.", "reason")
        self.key_requests = self._count("key_requests", "Requests let in, by the name of their key.", "key")
        self.key_tokens = self._count(
            "key_tokens", "Tokens by the name of the key and kind: prompt or output.", "key", "kind"
        )
        self.ttft = self._seconds("time_to_first_token_seconds", "From a checked request to its first token.")
        self.queue = self._seconds(
            "request_queue_seconds", "From a checked request to its first step, of requests that got a token."
        )
        self.itl = GapHistogram(
            f"{PREFIX}_inter_token_latency_seconds", "Between two tokens of a choice.", "route", _SECONDS
        )
        self.registry.register(self.itl)
        self.e2e = self._seconds("request_latency_seconds", "From a checked request to its end.")
        self.prompt_tokens = self._tokens("request_prompt_tokens", "Prompt tokens of a request.")
        self.output_tokens = self._tokens("request_output_tokens", "Output tokens of a request.")

    def families(self) -> list[Family]:
        """What this process has measured, as data; without the engine."""
        return families_of(self.registry.collect())

    def render(self, accept: str, families: Sequence[Family] | None = None) -> tuple[bytes, str]:
        """The exposition text and its content type.

        Args:
            accept: Says in which format.
            families: What stands beside the engine's metrics; by default what this process has measured.
        """
        encode, content_type = choose_encoder(accept)
        shown = self.registry.collect() if families is None else metrics_of(families)
        return encode(_Collected(chain(self.engine.collect(), shown))), content_type

    def show(self, name: str, text: str, read: Callable[[], float]) -> None:
        """Show as a gauge what ``read`` gives whenever metrics are asked for."""
        Gauge(f"{PREFIX}_{name}", text, registry=self.registry).set_function(read)

    def _count(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"{PREFIX}_{name}", text, labels, registry=self.registry)

    def _seconds(self, name: str, text: str) -> Histogram:
        return Histogram(f"{PREFIX}_{name}", text, ["route"], buckets=_SECONDS, registry=self.registry)

    def _tokens(self, name: str, text: str) -> Histogram:
        return Histogram(f"{PREFIX}_{name}", text, ["route"], buckets=_TOKENS, registry=self.registry)


class _Collected(CollectorRegistry):
    """Metrics that were collected already, for an encoder."""

    def __init__(self, metrics: Iterable[Metric]) -> None:
        super().__init__()
        self._metrics = metrics

    def collect(self) -> Iterator[Metric]:
        """The metrics, once."""
        return iter(self._metrics)
