"""Metrics as data: taken from a registry, added up over processes, shown again. Knows no metric's meaning."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import msgspec
from prometheus_client.core import Metric

# Gauges whose sum over processes would tell nothing.
_NOT_ADDED: dict[str, Callable[[float, float], float]] = {
    "process_start_time_seconds": min,
    "process_max_fds": max,
    "llm_stack_build_info": max,
}
_GROWING = frozenset({"counter", "histogram"})
_CREATED = "_created"

Key = tuple[str, tuple[tuple[str, str], ...]]


class Family(msgspec.Struct, frozen=True, array_like=True):
    """One metric.

    Attributes:
        name: Its name, without the suffixes of its samples.
        text: What it measures.
        kind: Prometheus' type.
        samples: Name, labels and value of each.
    """

    name: str
    text: str
    kind: str
    samples: list[tuple[str, dict[str, str], float]]

    @property
    def grows(self) -> bool:
        """Whether its values add up over the lives of processes."""
        return self.kind in _GROWING


def families_of(metrics: Iterable[Metric]) -> list[Family]:
    """What a registry has collected, as data."""
    return [
        Family(
            metric.name,
            metric.documentation,
            metric.type,
            [(sample.name, dict(sample.labels), float(sample.value)) for sample in metric.samples],
        )
        for metric in metrics
    ]


def metrics_of(families: Iterable[Family]) -> Iterator[Metric]:
    """The data as a registry would collect it."""
    for family in families:
        metric = Metric(family.name, family.text, family.kind)
        for name, labels, value in family.samples:
            metric.add_sample(name, labels, value)
        yield metric


class MergedFamilies:
    """The metrics of several processes as those of one.

    Counters and histograms of a process that has ended are kept, so that sums never go backwards; its gauges
    are dropped.
    """

    def __init__(self) -> None:
        self._latest: dict[int, list[Family]] = {}
        self._ended: list[Family] = []

    def note(self, process: int, families: list[Family]) -> None:
        """Take in the metrics of a process, in place of its earlier ones."""
        self._latest[process] = families

    def retire(self, process: int) -> None:
        """A process has ended; another one by its number counts from 0."""
        last = self._latest.pop(process, [])
        self._ended = add_up([self._ended, [family for family in last if family.grows]])

    def families(self) -> list[Family]:
        """The sums."""
        return add_up([self._ended, *self._latest.values()])


def add_up(processes: Iterable[list[Family]]) -> list[Family]:
    """The metrics of all processes: sums, but for the gauges that do not add up."""
    heads: dict[str, Family] = {}
    sums: dict[str, dict[Key, float]] = {}
    for families in processes:
        for family in families:
            heads.setdefault(family.name, family)
            values = sums.setdefault(family.name, {})
            for name, labels, value in family.samples:
                key = (name, tuple(labels.items()))
                before = values.get(key)
                values[key] = value if before is None else _both(family, name, before, value)
    return [
        Family(
            head.name,
            head.text,
            head.kind,
            [(name, dict(labels), value) for (name, labels), value in sums[head.name].items()],
        )
        for head in heads.values()
    ]


def _both(family: Family, sample: str, left: float, right: float) -> float:
    if family.grows and sample.endswith(_CREATED):
        return min(left, right)
    join = _NOT_ADDED.get(family.name)
    return left + right if join is None else join(left, right)
