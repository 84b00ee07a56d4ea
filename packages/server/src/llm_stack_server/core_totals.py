"""Adds up what the engine's cores counted, each from 0: totals never go backwards. Knows no metrics."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from llm_engine.stats import EngineStats

_COUNTERS = (
    "prefix_query_tokens",
    "prefix_hit_tokens",
    "kv_evictions",
    "preemptions",
    "requests_added",
    "requests_refused",
    "prompt_tokens",
    "generated_tokens",
    "scheduled_tokens",
    "steps",
    "graph_steps",
    "eager_steps",
    "failed_steps",
    "late_steps",
    "plan_s",
    "launch_s",
    "result_s",
    "host_s",
    "wait_s",
    "between_s",
)


class CoreTotals:
    """The totals of all cores so far. What a core did after its last snapshot is not counted."""

    def __init__(self) -> None:
        self._generation = 0
        self._before = EngineStats()
        self._last = EngineStats()

    @property
    def totals(self) -> EngineStats:
        """The totals, as of the last snapshot; gauges are 0."""
        return _sum(self._before, self._last)

    def note(self, generation: int, stats: EngineStats) -> EngineStats:
        """Take a core's snapshot in.

        Args:
            generation: Which core: it grows with each; a snapshot of an earlier one changes nothing.
            stats: What it counted itself.

        Returns:
            The snapshot's gauges with the totals of all cores.
        """
        if generation < self._generation:
            return replace(stats, **_counters(self.totals))
        if generation > self._generation:
            self._before, self._generation, self._last = self.totals, generation, stats
        if stats.uptime_s >= self._last.uptime_s:  # several front ends take them, and tell in any order
            self._last = stats
        return replace(stats, **_counters(self.totals))


def _sum(left: EngineStats, right: EngineStats) -> EngineStats:
    sums = {name: getattr(left, name) + getattr(right, name) for name in _COUNTERS}
    reasons = dict.fromkeys((*left.requests_finished, *right.requests_finished))
    finished = {
        reason: left.requests_finished.get(reason, 0) + right.requests_finished.get(reason, 0)
        for reason in reasons
    }
    return EngineStats(**sums, requests_finished=finished)


def _counters(stats: EngineStats) -> dict[str, Any]:
    return {name: getattr(stats, name) for name in (*_COUNTERS, "requests_finished")}
