"""Draws reports as one picture; the only module that needs matplotlib, and only when it is called."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from llm_scheduler.sim.errors import InvalidSetup, PlottingUnavailable
from llm_scheduler.sim.report import Report
from llm_scheduler.sim.running import Simulation
from llm_scheduler.sim.sweeping import SweepPoint
from llm_scheduler.sim.workload import Float64

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_CURVE_POINTS = 300


def draw(simulations: Sequence[Simulation], path: str | Path, *, title: str = "") -> None:
    """Draw simulations over each other: latencies, queue, cache use, tokens.

    Args:
        simulations: At least one.
        path: The picture; its ending (``.png``, ``.svg``, ``.pdf``) tells the format. Equal simulations give
            equal bytes in one version of matplotlib.
        title: Above the picture.

    Raises:
        PlottingUnavailable: matplotlib is not installed.
        InvalidSetup: The ending is no format that matplotlib writes.
    """
    with _picture(path, title, columns=3, height_in=7) as axes:
        _draw_curves(axes[0, 0], simulations, "time to first token, s", "ttft")
        _draw_curves(axes[0, 1], simulations, "time between tokens, s", "itl")
        _draw_curves(axes[0, 2], simulations, "time to last token, s", "e2e")
        _draw_timelines(axes[1, 0], simulations, "requests waiting", "waiting")
        _draw_timelines(axes[1, 1], simulations, "share of KV blocks in use", "kv_usage")
        _draw_bars(axes[1, 2], simulations)
        axes[0, 0].legend()


def draw_sweep(points: Sequence[SweepPoint], path: str | Path, *, title: str = "") -> None:
    """Draw how each policy fares as the rate grows: goodput, latencies, tokens.

    Args:
        points: At least one.
        path: As for ``draw``.
        title: Above the picture.

    Raises:
        PlottingUnavailable, InvalidSetup: As for ``draw``.
    """
    figures: dict[str, Callable[[Report], float | None]] = {
        "goodput, share of requests": lambda report: report.goodput.share if report.goodput else None,
        "p99 time to first token, s": lambda report: report.ttft_s.p99,
        "p99 time between tokens, s": lambda report: report.itl_s.p99,
        "output tokens a second": lambda report: report.throughput.output_tokens_per_s,
    }
    with _picture(path, title, columns=2, height_in=7) as axes:
        for place, (label, figure_of) in zip(axes.flat, figures.items(), strict=True):
            _draw_lines(place, points, label, figure_of)
        axes[0, 0].legend()


@contextmanager
def _picture(path: str | Path, title: str, *, columns: int, height_in: float) -> Iterator[Any]:
    """Give two rows of axes to draw in, then write the file."""
    try:
        import matplotlib as mpl
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise PlottingUnavailable from error
    figure = Figure(figsize=(4 * columns, height_in), layout="constrained")
    ending = Path(path).suffix.removeprefix(".")
    known = FigureCanvasAgg(figure).get_supported_filetypes()
    InvalidSetup.require("plot", ending in known, f"expected a name ending in .png or .svg, got {path}")
    yield figure.subplots(2, columns)
    if title:
        figure.suptitle(title)
    # A fixed salt and no date: the same run gives the same file.
    with mpl.rc_context({"svg.hashsalt": "llm-sim", "svg.fonttype": "none"}):
        figure.savefig(path, metadata={"Date": None} if ending == "svg" else None)


def _draw_lines(
    axes: Axes, points: Sequence[SweepPoint], label: str, figure_of: Callable[[Report], float | None]
) -> None:
    for name in dict.fromkeys(point.report.name for point in points):
        own = sorted((p for p in points if p.report.name == name), key=lambda point: point.rate_scale)
        heights = [figure_of(point.report) for point in own]
        known = [np.nan if height is None else height for height in heights]
        axes.plot([point.rate_scale for point in own], known, marker="o", label=name)
    axes.set_xlabel("rate of arrivals, times the workload's")
    axes.set_ylabel(label)
    axes.grid(visible=True, alpha=0.3)


def _draw_curves(axes: Axes, simulations: Sequence[Simulation], label: str, kind: str) -> None:
    """Draw which share of the values is at most x."""
    for simulation in simulations:
        values = _values(simulation, kind)
        shares = np.linspace(0, 1, _CURVE_POINTS)
        if len(values):
            axes.plot(np.quantile(values, shares), shares, label=simulation.report.name)
    axes.set_xscale("log")
    axes.set_xlabel(label)
    axes.set_ylabel("share")
    axes.grid(visible=True, alpha=0.3)


def _values(simulation: Simulation, kind: str) -> Float64:
    log = simulation.recording.requests
    if kind == "itl":
        return log.itl_s()
    values = (log.first_token_s if kind == "ttft" else log.last_token_s) - log.arrived_s
    return values[~np.isnan(values)]


def _draw_timelines(axes: Axes, simulations: Sequence[Simulation], label: str, kind: str) -> None:
    for simulation in simulations:
        timeline = simulation.report.timeline
        values = getattr(timeline, kind)
        axes.plot(timeline.interval_s * np.arange(1, len(values) + 1), values, label=simulation.report.name)
    axes.set_xlabel("time, s")
    axes.set_ylabel(label)
    axes.set_ylim(bottom=0)
    axes.grid(visible=True, alpha=0.3)


def _draw_bars(axes: Axes, simulations: Sequence[Simulation]) -> None:
    """Draw the figures that are shares, those that any simulation has."""
    by_title: dict[str, list[float | None]] = {
        "prefix\nhit rate": [simulation.report.cache.hit_rate for simulation in simulations],
        "fairness\n(Jain)": [simulation.report.fairness.jain_contended for simulation in simulations],
        "goodput": [s.report.goodput.share if s.report.goodput else None for s in simulations],
    }
    shown = {
        title: shares for title, shares in by_title.items() if any(share is not None for share in shares)
    }
    width = 0.8 / len(simulations)
    for number, simulation in enumerate(simulations):
        shares = [found[number] for found in shown.values()]
        places = np.arange(len(shown)) + width * (number - (len(simulations) - 1) / 2)
        heights = [np.nan if share is None else share for share in shares]
        bars = axes.bar(places, heights, width, label=simulation.report.name)
        labels = ["" if share is None else f"{share:.2f}" for share in shares]
        axes.bar_label(bars, labels, fontsize="small")
    axes.set_xticks(range(len(shown)), list(shown))
    axes.set_ylim(0, 1.1)
