"""Reports as a table of plain text, one column a report; knows nothing of how figures come about."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from llm_scheduler.sim.report import Distribution, Report


def format_table(reports: Sequence[Report]) -> str:
    """Return the reports side by side.

    Args:
        reports: At least one.
    """
    lines = [["", *(report.name for report in reports)]]
    lines += [[title, *cells] for title, cells in _rows(reports)]
    return format_columns(lines)


def format_columns(lines: Sequence[Sequence[str]]) -> str:
    """Return lines of cells under each other, the first column to the left and the others to the right."""
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    return "".join(
        "  ".join([line[0].ljust(widths[0]), *map(str.rjust, line[1:], widths[1:])]).rstrip() + "\n"
        for line in lines
    )


def _rows(reports: Sequence[Report]) -> Iterator[tuple[str, list[str]]]:
    yield "requests finished", [f"{r.requests.finished}/{r.requests.total}" for r in reports]
    if any(r.requests.refused for r in reports):
        yield "refused", [_refusals(r) for r in reports]
    if any(r.requests.failed for r in reports):
        yield "failed", [str(r.requests.failed) for r in reports]
    if any(r.requests.expired for r in reports):
        yield "expired", [str(r.requests.expired) for r in reports]
    if any(r.requests.not_sent for r in reports):
        yield "not sent", [str(r.requests.not_sent) for r in reports]
    yield "TTFT p50 / p90 / p99", [_percentiles(r.ttft_s) for r in reports]
    yield "ITL p50 / p90 / p99", [_percentiles(r.itl_s) for r in reports]
    yield "E2E p50 / p90 / p99", [_percentiles(r.e2e_s) for r in reports]
    if any(r.goodput for r in reports):
        yield "goodput", [_goodput(r) for r in reports]
    if any(r.goodput and r.goodput.with_deadline for r in reports):
        yield "deadlines met", [_deadlines(r) for r in reports]
    yield "requests/s", [f"{r.throughput.requests_per_s:.2f}" for r in reports]
    yield "output tokens/s", [f"{r.throughput.output_tokens_per_s:,.0f}" for r in reports]
    yield "total tokens/s", [f"{r.throughput.total_tokens_per_s:,.0f}" for r in reports]
    yield "simulated time", [f"{r.throughput.seconds:,.1f} s, {r.throughput.busy:.0%} busy" for r in reports]
    yield "prefix hit rate", [f"{r.cache.hit_rate:.1%}" for r in reports]
    yield "KV usage mean / max", [f"{r.cache.mean_usage:.1%} / {r.cache.max_usage:.1%}" for r in reports]
    yield "waiting mean / max", [f"{r.steps.mean_waiting:.1f} / {r.steps.max_waiting}" for r in reports]
    yield "preemptions", [str(r.steps.preemptions) for r in reports]
    yield "steps, rows a step", [f"{r.steps.steps}, {r.steps.mean_rows:.1f}" for r in reports]
    if any(len(r.tenants) > 1 for r in reports):
        yield "fairness (Jain)", [_fairness(r) for r in reports]
        for name in dict.fromkeys(name for r in reports for name in r.tenants):
            yield f"  {name or '(no name)'}: TTFT", [_tenant(r, name) for r in reports]


def _refusals(report: Report) -> str:
    kinds = ", ".join(f"{number} {name}" for name, number in report.requests.refusals.items())
    return kinds or "0"


def _percentiles(spread: Distribution) -> str:
    values = (spread.p50, spread.p90, spread.p99)
    return " / ".join(format_seconds(value) for value in values)


def _goodput(report: Report) -> str:
    good = report.goodput
    return f"{good.share:.1%}, {good.requests_per_s:.2f}/s" if good else "-"


def _deadlines(report: Report) -> str:
    good = report.goodput
    return f"{good.deadlines_met}/{good.with_deadline}" if good else "-"


def _fairness(report: Report) -> str:
    contended = report.fairness.jain_contended
    return "no contention" if contended is None else f"{contended:.3f}"


def _tenant(report: Report, name: str) -> str:
    figures = report.tenants.get(name)
    return _percentiles(figures.ttft_s) if figures else "-"


def format_seconds(seconds: float | None) -> str:
    """Return seconds with a unit that suits them, or ``-``."""
    if seconds is None:
        return "-"
    for factor, unit in ((1e6, "us"), (1e3, "ms")):
        if seconds * factor < 1000:
            return f"{seconds * factor:.3g} {unit}"
    return f"{seconds:.3g} s" if seconds < 1000 else f"{seconds:,.0f} s"
