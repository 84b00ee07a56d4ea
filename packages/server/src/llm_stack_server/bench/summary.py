"""Turns lists of measurements into the numbers that are reported; knows nothing of what was measured."""

import math
from collections.abc import Sequence

_PERCENTILES = (50, 90, 99)


def percentile(values: Sequence[float], percent: float) -> float:
    """The value that `percent` of them do not exceed, interpolated between neighbours; `values` not empty."""
    ordered = sorted(values)
    place = (len(ordered) - 1) * percent / 100
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


def summarize(values: Sequence[float]) -> dict[str, float]:
    """Mean, percentiles and maximum; empty where there is no value."""
    if not values:
        return {}
    found = {"mean": sum(values) / len(values)}
    found |= {f"p{percent}": percentile(values, percent) for percent in _PERCENTILES}
    return found | {"max": max(values)}
