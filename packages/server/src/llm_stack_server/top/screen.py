"""Shows figures in a terminal. Knows nothing of servers or of how the figures were made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.panel import Panel
from rich.segment import Segment
from rich.style import Style
from rich.table import Table
from rich.text import Text

from llm_stack_server.top.figures import Figures, KeyUse

_LEVELS = "▁▂▃▄▅▆▇█"
_UNKNOWN = "-"
_COLORS = {
    "ready": "green",
    "starting": "yellow",
    "restarting": "yellow",
    "draining": "yellow",
    "stalled": "red",
    "dead": "red",
    "down": "red",
    "refused": "red",
}
_BLOCKS = (("used", "cyan", "in use"), ("cached", "blue", "kept"), ("free", "bright_black", "free"))
_WIDE = 76  # columns from which panels stand side by side
_MAX_KEYS = 12
_ENGINE = ("deaths of the core", "preemptions")
_COLOR_OF_STATUS = {"2": "green", "3": "cyan", "4": "yellow", "5": "red"}


def frame(figures: Figures, url: str, width: int, hint: str = "") -> RenderableType:
    """One picture of ``figures``, for a terminal of ``width`` columns."""
    parts: list[RenderableType] = [_head(figures, url)]
    if figures.reading.samples is not None:
        lowest = max(len(figures.answers), len(_ENGINE) + len(figures.finished))
        panels = [
            _panel("requests", _lines(figures, (("running", "cyan"), ("waiting", "yellow")))),
            _panel("tokens a second", _lines(figures, (("output", "green"), ("prompt", "magenta")))),
            _panel(_latency_title(figures), _latencies(figures)),
            _panel("KV cache", _cache(figures)),
            _panel("HTTP answers", _answers(figures), lowest),
            _panel("engine", _engine(figures), lowest),
        ]
        parts.append(_side_by_side(panels) if width >= _WIDE else Group(*panels))
        if figures.keys:
            parts.append(_panel("keys", _keys(figures.keys)))
    if hint:
        parts.append(Text(f" {hint}", style="bright_black"))
    return Group(*parts)


def _head(figures: Figures, url: str) -> RenderableType:
    reading = figures.reading
    color = _COLORS[reading.state]
    line = Text.assemble(("● ", color), (reading.state, f"bold {color}"))
    for text, style in ((reading.model, "bold"), (url, "cyan")):
        if text:
            line.append("   ").append(text, style)
    if reading.version:
        line.append("   ").append(f"v{reading.version}", "bright_black")
    rows: list[RenderableType] = [line]
    if reading.detail:
        rows.append(Text(reading.detail, style=color))
    return Panel(
        Group(*rows), title="[bold]llm-stack top[/]", title_align="left", border_style="bright_black"
    )


def _panel(title: str, inner: RenderableType, lines: int | None = None) -> Panel:
    height = None if lines is None else lines + 2
    return Panel(
        inner, title=f"[bold]{title}[/]", title_align="left", border_style="bright_black", height=height
    )


def _side_by_side(panels: Sequence[Panel]) -> Table:
    grid = Table.grid(expand=True)
    grid.add_column(ratio=1)
    grid.add_column(ratio=1)
    for left, right in zip(panels[::2], panels[1::2], strict=True):
        grid.add_row(left, right)
    return grid


def _lines(figures: Figures, names: Sequence[tuple[str, str]]) -> Table:
    now = {
        "running": figures.running,
        "waiting": figures.waiting,
        "output": figures.output_rate,
        "prompt": figures.prompt_rate,
    }
    table = Table.grid(padding=(0, 1), expand=True)
    table.add_column(width=8)
    table.add_column(width=8, justify="right")
    table.add_column(ratio=1)
    for name, color in names:
        table.add_row(
            name, Text(_number(now[name]), style="bold"), Sparkline(figures.history.get(name, ()), color)
        )
    return table


class Sparkline:
    """The last values as bars of one line, as many as fit; the highest of them is full."""

    def __init__(self, values: Sequence[float], color: str) -> None:
        self._values = values
        self._style = Style.parse(color)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """The bars."""
        yield Segment(sparkline(self._values, options.max_width), self._style)


def sparkline(values: Sequence[float], width: int) -> str:
    """The last ``width`` values as bars, at the right end."""
    shown = values[-width:] if width > 0 else ()
    top = max(shown, default=0.0)
    steps = len(_LEVELS) - 1
    bars = [_LEVELS[0] if top <= 0 else _LEVELS[round(max(0.0, value) / top * steps)] for value in shown]
    return "".join(bars).rjust(max(0, width))


def _latency_title(figures: Figures) -> str:
    return "latency" if figures.interval_s is None else f"latency of the last {figures.interval_s:.0f} s"


def _latencies(figures: Figures) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(width=14)
    table.add_column(width=9, justify="right")
    table.add_column(width=9, justify="right")
    table.add_row("", Text("p50", style="bright_black"), Text("p99", style="bright_black"))
    for name, values in figures.latencies.items():
        table.add_row(name, *(Text(_seconds(value), style="bold") for value in values))
    return table


def _cache(figures: Figures) -> RenderableType:
    total = sum(figures.blocks.values())
    shares = [(figures.blocks.get(name, 0.0), color) for name, color, _ in _BLOCKS]
    told = Text()
    for name, color, title in _BLOCKS:
        count = figures.blocks.get(name)
        told.append("■ ", color).append(f"{title} {_number(count)}  ")
    share = None if figures.hit_share is None else 100 * figures.hit_share
    rows = Table.grid(padding=(0, 2))
    rows.add_row("in use", Text(_percent(100 * shares[0][0] / total if total else None), style="bold"))
    rows.add_row("prefix hits", Text(_percent(share), style="bold"))
    return Group(Bar(shares), told, rows)


class Bar:
    """Parts of a whole as one bar."""

    def __init__(self, parts: Sequence[tuple[float, str]]) -> None:
        self._parts = parts

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """The bar."""
        total = sum(size for size, _ in self._parts)
        end, done = 0.0, 0
        for size, color in self._parts if total > 0 else ((1.0, "bright_black"),):
            end += size
            upto = round(end / (total or 1.0) * options.max_width)
            yield Segment(("░" if color == "bright_black" else "█") * (upto - done), Style.parse(color))
            done = upto
        yield Segment.line()


def _answers(figures: Figures) -> RenderableType:
    if not figures.answers:
        return Text("none yet", style="bright_black")
    table = Table.grid(padding=(0, 2))
    table.add_column()
    table.add_column(width=10, justify="right")
    table.add_column(width=10, justify="right")
    for status, (count, rate) in figures.answers.items():
        color = _COLOR_OF_STATUS.get(status[:1], "white")
        pace = "" if rate is None else f"{_number(rate)}/s"
        table.add_row(
            Text(status, style=color), Text(_number(count), style="bold"), Text(pace, style="bright_black")
        )
    return table


def _engine(figures: Figures) -> Table:
    table = Table.grid(padding=(0, 2))
    for title, count in zip(_ENGINE, (figures.deaths, figures.preemptions), strict=True):
        style = "bold red" if count and title == _ENGINE[0] else "bold"
        table.add_row(title, Text(_number(count), style=style))
    for reason, count in figures.finished.items():
        table.add_row(f"ended: {reason}", Text(_number(count), style="bold"))
    return table


def _keys(keys: Mapping[str, KeyUse]) -> Table:
    table = Table(box=None, padding=(0, 2), header_style="bright_black", pad_edge=False)
    table.add_column("key", overflow="ellipsis", no_wrap=True, max_width=24)
    for title in ("requests", "prompt tokens", "output tokens"):
        table.add_column(title, justify="right")
    busiest = sorted(keys.items(), key=lambda item: -item[1].output_tokens)
    for name, use in busiest[:_MAX_KEYS]:
        values = (use.requests, use.prompt_tokens, use.output_tokens)
        table.add_row(Text(name), *(_number(value) for value in values))
    if len(keys) > _MAX_KEYS:
        table.add_row(Text(f"and {len(keys) - _MAX_KEYS} more", style="bright_black"))
    return table


def _number(value: float | None) -> str:
    if value is None:
        return _UNKNOWN
    if value >= 1e6:
        return f"{value / 1e6:,.1f} M"
    return f"{value:,.0f}" if value == int(value) or value >= 100 else f"{value:.1f}"


def _percent(value: float | None) -> str:
    return _UNKNOWN if value is None else f"{value:.0f} %" if value >= 10 or value == 0 else f"{value:.1f} %"


def _seconds(value: float | None) -> str:
    if value is None:
        return _UNKNOWN
    if value < 1:
        return f"{value * 1000:.1f} ms" if value < 0.1 else f"{value * 1000:.0f} ms"
    return f"{value:.2f} s" if value < 10 else f"{value:.0f} s"
