"""How a trace of kernels is split into steps, on made-up traces."""

from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture
def trace(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks" / "gpu"))
    import kernel_trace

    return kernel_trace


def step_of(trace, begin):
    """4 us of kernels that overlap by half a microsecond, a gap of 1 us, and the copy of the tokens."""
    us = 1000
    return [
        trace.Launch("norm", begin, begin + 2 * us),
        trace.Launch("product", begin + us // 2 * 3, begin + 4 * us),
        trace.Launch("Memcpy DtoH (Device -> Pinned)", begin + 5 * us, begin + 6 * us),
    ]


def test_shares_and_gaps_add_up_to_the_time_from_step_to_step(trace):
    launches = [one for begin in (0, 8000, 20_000) for one in step_of(trace, begin)]
    first, second = trace.split_steps(launches)
    assert (first.period, first.between, first.inside) == (8.0, 2.0, 1.0)
    assert (second.period, second.between, second.inside) == (12.0, 6.0, 1.0)
    assert first.path == {"norm": 2.0, "product": 2.0, "Memcpy DtoH (Device -> Pinned)": 1.0}
    assert first.durations["product"] == 2.5
    for step in (first, second):
        assert sum(step.path.values()) + step.between + step.inside == step.period


def test_the_most_frequent_kind_of_step_is_reported(trace):
    launches = [one for begin in (0, 8000, 16_000, 24_000) for one in step_of(trace, begin)]
    launches.insert(4, trace.Launch("prefill", 8500, 9000))
    steps = trace.split_steps(launches)
    assert [len(step.names) for step in steps] == [4, 3, 3]
    head, _, *lines = trace.report(trace.alike(steps), top=2)
    assert head.startswith("2 steps: 8 us each, idle between steps 2, between kernels 1; 3 kernels, 6 us")
    assert [line.split()[-1] for line in lines] == ["norm", "product"]
