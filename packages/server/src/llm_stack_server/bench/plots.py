"""Draws a result with matplotlib, which is imported only here and need not be installed."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from llm_stack_server.errors import ServerError


def require_matplotlib() -> None:
    """Raises `ServerError` where plots cannot be drawn, before anything is measured."""
    try:
        import matplotlib as mpl  # noqa: F401
    except ImportError as error:
        raise ServerError("plot: matplotlib is not installed (pip install matplotlib)") from error


def draw_bars(path: Path, title: str, unit: str, bars: Sequence[tuple[str, float]]) -> None:
    """One bar a name, with its value."""
    figure, axes = _figure(title)
    names, values = [name for name, _ in bars], [value for _, value in bars]
    drawn = axes.barh(names[::-1], values[::-1])
    axes.bar_label(drawn, fmt="%.4g", padding=3)
    axes.set_xlabel(unit)
    figure.savefig(path)


def draw_latencies(path: Path, title: str, groups: Mapping[str, Mapping[str, float]]) -> None:
    """Percentiles of several latencies, on a logarithmic axis."""
    figure, axes = _figure(title)
    for name, summary in groups.items():
        points = [(key, value) for key, value in summary.items() if key.startswith("p")]
        axes.plot([key for key, _ in points], [value for _, value in points], marker="o", label=name)
    axes.set_yscale("log")
    axes.set_ylabel("milliseconds")
    axes.legend()
    figure.savefig(path)


def _figure(title: str) -> tuple[Any, Any]:
    # Without pyplot: no window system is asked for, and nothing is kept between calls.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4.5), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    axes.set_title(title)
    return figure, axes
