"""What `/metrics` shows of the engine: its life, its totals, its gauges. Knows nothing of requests."""

from __future__ import annotations

from collections.abc import Iterator
from typing import get_args

from llm_engine.core.core_state import CorePhase, CoreState
from llm_engine.stats import EngineStats
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from llm_stack_server.core_totals import CoreTotals

PREFIX = "llm_stack"


class EngineCollector(Collector):
    """Shows where the engine is in its life, its totals, and the gauges of its latest snapshot."""

    def __init__(self) -> None:
        self._snapshot: EngineStats | None = None
        self._state: CoreState | None = None
        self._cores = CoreTotals()
        self._totals = EngineStats()

    def note(self, state: CoreState | None, stats: EngineStats | None) -> None:
        """Take in what the engine is doing now; None where it does not exist yet or did not answer."""
        if state is not None and stats is not None:
            self._cores.note(state.generation, stats)
        self.show(state, stats, self._cores.totals)

    def show(self, state: CoreState | None, stats: EngineStats | None, totals: EngineStats) -> None:
        """Show the gauges of ``stats`` and, in place of what one core has counted, these totals."""
        self._state, self._snapshot, self._totals = state, stats, totals

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
        yield from _engine_counters(self._totals)


def _gauges(stats: EngineStats) -> Iterator[Metric]:
    yield _gauge("requests_running", "Requests that hold a slot.", stats.running)
    yield _gauge("requests_waiting", "Requests in the queue.", stats.waiting)
    blocks = GaugeMetricFamily(f"{PREFIX}_kv_blocks", "KV-cache blocks by state.", labels=["state"])
    blocks.add_metric(["free"], stats.kv_blocks_free)
    blocks.add_metric(["cached"], stats.kv_blocks_cached)
    blocks.add_metric(["used"], stats.kv_blocks_used)
    yield blocks
    yield _gauge(
        "kv_blocks_pinned",
        "References that pins hold: a block of two pins counts twice.",
        stats.kv_blocks_pinned,
    )
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
    yield _counter("kv_evictions", "KV blocks whose contents were given up for others.", stats.kv_evictions)
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
