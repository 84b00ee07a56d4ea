"""Draws reports as one picture; the only module that needs matplotlib, and only when it is called."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from llm_scheduler.sim.errors import InvalidSetup, PlottingUnavailable
from llm_scheduler.sim.running import Simulation
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
    try:
        import matplotlib as mpl
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise PlottingUnavailable from error
    figure = Figure(figsize=(12, 7), layout="constrained")
    ending = Path(path).suffix.removeprefix(".")
    known = FigureCanvasAgg(figure).get_supported_filetypes()
    InvalidSetup.require("plot", ending in known, f"expected a name ending in .png or .svg, got {path}")
    axes = figure.subplots(2, 3)
    _draw_curves(axes[0, 0], simulations, "time to first token, s", "ttft")
    _draw_curves(axes[0, 1], simulations, "time between tokens, s", "itl")
    _draw_curves(axes[0, 2], simulations, "time to last token, s", "e2e")
    _draw_timelines(axes[1, 0], simulations, "requests waiting", "waiting")
    _draw_timelines(axes[1, 1], simulations, "share of KV blocks in use", "kv_usage")
    _draw_bars(axes[1, 2], simulations)
    axes[0, 0].legend()
    if title:
        figure.suptitle(title)
    # A fixed salt and no date: the same run gives the same file.
    with mpl.rc_context({"svg.hashsalt": "llm-sim", "svg.fonttype": "none"}):
        figure.savefig(path, metadata={"Date": None} if ending == "svg" else None)


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
