"""The same workload at several rates under several policies: where each of them gives way; knows no files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from llm_scheduler.sim.engine_setup import EngineSetup
from llm_scheduler.sim.errors import InvalidSetup
from llm_scheduler.sim.report import Report, Slo
from llm_scheduler.sim.running import compare
from llm_scheduler.sim.step_time import StepTime
from llm_scheduler.sim.table import format_columns, format_seconds
from llm_scheduler.sim.workload import Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepPoint:
    """One policy at one rate.

    Attributes:
        rate_scale: How many times as fast as stated the workload arrived.
        offered_per_s: Requests that arrived a second; None where all arrived at once.
        report: The figures.
    """

    rate_scale: float
    offered_per_s: float | None
    report: Report


def sweep(
    workload: Workload,
    setup: EngineSetup,
    step_time: StepTime,
    names: Sequence[str | type],
    rate_scales: Sequence[float],
    *,
    slo: Slo | None = None,
) -> list[SweepPoint]:
    """Run a workload at several rates, under each of several policies or schedulers.

    Args:
        workload: What arrives.
        setup: The engine; its policy or scheduler is replaced by each of the names.
        step_time: How long a step takes.
        names: As for ``compare``.
        rate_scales: How many times as fast as stated it arrives, each once.
        slo: Bounds of goodput.

    Returns:
        By rate in the order given, then by name.

    Raises:
        InvalidSetup: There is no rate, or one comes twice, or a name does.
        InvalidWorkload: A rate is not a positive finite number.
        SchedulerNotFound, IncompatibleScheduler, InvalidConfig: A name is no usable policy or scheduler.
        SchedulerStalled, SchedulerFault: As ``compare``.
    """
    unique = 0 < len(set(rate_scales)) == len(rate_scales)
    InvalidSetup.require("rate_scales", unique, "expected at least one, none twice")
    scaled = {scale: workload.scaled(scale) for scale in rate_scales}
    return [
        SweepPoint(rate_scale=scale, offered_per_s=offered_rate(load), report=simulation.report)
        for scale, load in scaled.items()
        for simulation in compare(load, setup, step_time, names, slo=slo)
    ]


def offered_rate(workload: Workload) -> float | None:
    """Return the requests a second between the first and the last arrival, None where that is no time.

    Requests that follow others are counted, but do not stretch the time: for conversations it is an estimate.
    """
    arrivals = workload.arrival_s[workload.after < 0]
    span_s = float(arrivals.max() - arrivals.min())
    return len(workload) / span_s if span_s else None


def format_sweep(points: Sequence[SweepPoint]) -> str:
    """Return the points as a table of plain text, one line each."""
    lines = [
        ["rate", "offered/s", "name", "goodput", "TTFT p50", "p99", "ITL p99", "E2E p99", "tokens/s", "hits"]
    ]
    for point in points:
        report = point.report
        lines.append(
            [
                f"x{point.rate_scale:g}",
                "-" if point.offered_per_s is None else f"{point.offered_per_s:.2f}",
                report.name,
                f"{report.goodput.share:.1%}" if report.goodput else "-",
                format_seconds(report.ttft_s.p50),
                format_seconds(report.ttft_s.p99),
                format_seconds(report.itl_s.p99),
                format_seconds(report.e2e_s.p99),
                f"{report.throughput.output_tokens_per_s:,.0f}",
                f"{report.cache.hit_rate:.1%}",
            ]
        )
    return format_columns(lines)
