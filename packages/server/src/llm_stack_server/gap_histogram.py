"""A histogram for what is measured with each token: no locks, so it costs little. Knows no requests."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import accumulate

from prometheus_client.core import HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString


class Gaps:
    """What was observed under one label. Belongs to one event loop; read from any thread."""

    __slots__ = ("_bounds", "_counts", "_sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        """Count the value as often as it came."""
        self._counts[bisect_left(self._bounds, value)] += times
        self._sum += value * times

    def read(self) -> tuple[list[int], float]:
        """For each bound how many values are at or below it, in the end how many there are; and their sum."""
        return list(accumulate(self._counts)), self._sum


class GapHistogram(Collector):
    """Shown as the histograms of prometheus_client are, whose `observe` takes ten times as long.

    Args:
        name: Of the metric.
        text: What it measures.
        label: Its only label.
        bounds: Upper bounds of the buckets, ascending; one without a bound follows.
    """

    def __init__(self, name: str, text: str, label: str, bounds: Sequence[float]) -> None:
        self._name = name
        self._text = text
        self._label = label
        self._bounds = bounds
        self._children: dict[str, Gaps] = {}

    def labels(self, value: str) -> Gaps:
        """What is observed under a value of the label."""
        return self._children.setdefault(value, Gaps(self._bounds))

    def collect(self) -> Iterator[Metric]:
        """Yield the metric family."""
        family = HistogramMetricFamily(self._name, self._text, labels=[self._label])
        names = [*map(floatToGoString, self._bounds), "+Inf"]
        for value, gaps in list(self._children.items()):
            counts, total = gaps.read()
            family.add_metric([value], list(zip(names, counts, strict=True)), total)
        yield family
