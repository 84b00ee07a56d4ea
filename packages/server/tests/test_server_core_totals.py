"""Totals over several cores never go backwards, and lose nothing that was seen."""

import dataclasses

from llm_engine.stats import EngineStats
from llm_stack_server.core_totals import CoreTotals


def test_a_new_core_counts_on():
    totals = CoreTotals()
    assert totals.note(1, EngineStats(steps=5, running=2, requests_finished={"stop": 1})).steps == 5
    totals.note(1, EngineStats(steps=7, running=1, requests_finished={"stop": 2, "length": 1}))
    merged = totals.note(2, EngineStats(steps=1, running=3, requests_finished={"length": 1, "abort": 4}))
    assert (merged.steps, merged.running) == (8, 3)
    assert merged.requests_finished == {"stop": 2, "length": 2, "abort": 4}
    assert totals.note(4, EngineStats(steps=2)).steps == 10


def test_a_late_snapshot_of_a_core_that_is_gone_changes_nothing():
    totals = CoreTotals()
    totals.note(1, EngineStats(steps=5))
    totals.note(2, EngineStats(steps=1))
    assert totals.note(1, EngineStats(steps=6)).steps == 6
    assert totals.totals.steps == 6


def test_every_total_is_added_up():
    described = EngineStats.__doc__ or ""
    names = [line.split(":")[0].strip() for line in described.splitlines() if "(total)" in line]
    assert len(names) > 15
    totals = CoreTotals()
    for generation in (1, 2):
        ones = {name: {"stop": 1} if name == "requests_finished" else 1 for name in names}
        merged = totals.note(generation, EngineStats(**ones))
    found = {name: value for name, value in dataclasses.asdict(merged).items() if value}
    assert found == {name: {"stop": 2} if name == "requests_finished" else 2 for name in names}
