"""Prometheus samples: reads the text, tells what happened between two readings. Knows none by name."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from prometheus_client.parser import text_string_to_metric_families

from llm_stack_server.errors import ServerError

Labels = frozenset[tuple[str, str]]
_COUNTED = ("_total", "_bucket", "_count", "_sum")


class NotMetrics(ServerError):
    """The text is no Prometheus exposition."""


@dataclass(frozen=True, slots=True)
class Samples:
    """Values by name and labels.

    Attributes:
        values: All samples of a reading, or what was added to its counters since an earlier one.
    """

    values: Mapping[tuple[str, Labels], float] = field(default_factory=dict)

    @classmethod
    def parse(cls, text: str) -> Samples:
        """Read Prometheus text.

        Raises:
            NotMetrics: A line is neither a sample nor a comment.
        """
        try:
            return cls(
                {
                    (sample.name, frozenset(sample.labels.items())): float(sample.value)
                    for family in text_string_to_metric_families(text)
                    for sample in family.samples
                }
            )
        except (ValueError, KeyError, IndexError, TypeError) as error:
            raise NotMetrics(f"no metrics in Prometheus' format: {error}") from None

    def since(self, before: Samples) -> Samples:
        """What was added to each counter since ``before``.

        A counter that went back was begun anew, by a new server: then all that it shows was added since.
        """
        return Samples(
            {
                key: value - before.values.get(key, 0.0) if value >= before.values.get(key, 0.0) else value
                for key, value in self.values.items()
                if key[0].endswith(_COUNTED)
            }
        )

    def total(self, name: str, **labels: str) -> float | None:
        """The sum of the samples of ``name`` that have ``labels``; None where there is none."""
        wanted = labels.items()
        found = [value for (each, have), value in self.values.items() if each == name and wanted <= set(have)]
        return sum(found) if found else None

    def without(self, label: str, pattern: re.Pattern[str]) -> Samples:
        """The samples but those whose ``label`` is matched whole by ``pattern``."""
        kept = {
            key: value
            for key, value in self.values.items()
            if not pattern.fullmatch(dict(key[1]).get(label, ""))
        }
        return Samples(kept)

    def by_label(self, name: str, label: str) -> dict[str, float]:
        """The sums of the samples of ``name`` for each value of ``label``."""
        sums: dict[str, float] = {}
        for (each, labels), value in self.values.items():
            if each == name:
                group = dict(labels).get(label, "")
                sums[group] = sums.get(group, 0.0) + value
        return sums

    def quantile(self, name: str, share: float) -> float | None:
        """A quantile of the histogram ``name``, over all its labels; None where nothing was observed.

        Observations are taken to be spread evenly within a bucket. Beyond the last bound it is that bound.

        Args:
            name: The histogram's name, without ``_bucket``.
            share: 0.5 for the median, up to 1.
        """
        counts = sorted((_bound(le), count) for le, count in self.by_label(f"{name}_bucket", "le").items())
        if not counts or counts[-1][1] <= 0:
            return None
        rank = share * counts[-1][1]
        low, below = 0.0, 0.0
        for bound, count in counts:
            if count >= rank and count > below:
                return low if math.isinf(bound) else low + (bound - low) * (rank - below) / (count - below)
            low, below = bound, count
        return low


def _bound(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.inf
