"""The histogram of gaps shows what prometheus_client's own would show."""

import pytest
from llm_stack_server.gap_histogram import GapHistogram
from prometheus_client import CollectorRegistry, Histogram, generate_latest

BOUNDS = (0.001, 0.5, 1.0)


def shown(registry: CollectorRegistry) -> list[str]:
    return [line for line in generate_latest(registry).decode().splitlines() if "_created" not in line]


@pytest.mark.parametrize("values", [[], [0.001, 0.0011, 0.5, 0.7, 1.0, 1.5, 99.0, 0.0]])
def test_it_shows_the_same(values):
    ours, theirs = CollectorRegistry(), CollectorRegistry()
    histogram = GapHistogram("gap_seconds", "A gap.", "route", BOUNDS)
    ours.register(histogram)
    reference = Histogram("gap_seconds", "A gap.", ["route"], buckets=BOUNDS, registry=theirs)
    for route in ("/a", "/b"):
        child, known = histogram.labels(route), reference.labels(route)
        for value in values:
            child.observe(value, 2)
            known.observe(value)
            known.observe(value)
    assert shown(ours) == shown(theirs)
    assert histogram.labels("/a") is histogram.labels("/a")
