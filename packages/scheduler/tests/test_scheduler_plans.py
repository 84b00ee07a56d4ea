"""What a plan holds, and the order of the calls, on the real cache."""

from __future__ import annotations

import numpy as np
import pytest
from llm_scheduler import (
    InvalidResult,
    PlanOrderError,
    Ragged,
    Scheduler,
    StepResult,
)
from scheduler_bench import Bench, admitted, rows

# Plans


def test_it_keeps_the_protocol() -> None:
    assert isinstance(Bench().scheduler, Scheduler)


def test_nothing_to_do_is_none() -> None:
    bench = Bench()
    assert bench.scheduler.schedule() is None
    assert not bench.scheduler.has_work()


def test_prompts_then_decodes_are_batched() -> None:
    bench = Bench()
    bench.add("a", 5)
    bench.add("b", 3)
    assert rows(bench.loop.launch()) == [(0, 0, 5, True), (1, 0, 3, True)]
    bench.loop.land()
    assert rows(bench.loop.launch()) == [(0, 5, 1, True), (1, 3, 1, True)]
    bench.loop.land()
    bench.run_and_check()


def test_a_long_prompt_is_cut_to_the_budget_and_decodes_stay() -> None:
    bench = Bench(max_num_batched_tokens=8)
    bench.add("a", 3, max_tokens=10)
    bench.loop.step()
    bench.add("b", 20)
    assert rows(bench.loop.launch()) == [(0, 3, 1, True), (1, 0, 7, False)]
    bench.loop.land()
    assert rows(bench.loop.launch()) == [(0, 4, 1, True), (1, 7, 7, False)]
    bench.loop.land()
    assert rows(bench.loop.launch()) == [(0, 5, 1, True), (1, 14, 6, True)]
    bench.loop.land()
    bench.run_and_check()


def test_a_decode_is_served_before_an_older_chunk_and_stands_first() -> None:
    bench = Bench(max_num_batched_tokens=8, long_prefill_tokens=6)
    bench.add("long", 30)
    bench.add("short", 2)
    assert rows(bench.loop.launch()) == [(0, 0, 6, False), (1, 0, 2, True)]
    bench.loop.land()
    assert rows(bench.loop.launch()) == [(1, 2, 1, True), (0, 6, 6, False)]
    bench.loop.land()
    bench.run_and_check()


def test_the_long_prefill_cap_lets_short_prompts_in() -> None:
    bench = Bench(max_num_batched_tokens=16, long_prefill_tokens=8)
    bench.add("long", 40)
    bench.add("short", 3)
    plan = bench.loop.launch()
    assert admitted(plan) == ["long", "short"]
    assert rows(plan)[0][2] == 8
    bench.loop.land()
    bench.run_and_check()


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_slots_are_reused_and_told_to_the_worker(depth: int) -> None:
    bench = Bench(depth=depth, max_num_seqs=2, max_plans_in_flight=depth)
    for name in "abcdef":
        bench.add(name, max_tokens=3)
    bench.run_and_check()
    released = [slot for plan in bench.loop.plans for slot in plan.released.tolist()]
    assert len(released) == 4  # the last two are free, and no plan came after to name them
    assert {plan.slots.max() for plan in bench.loop.plans} <= {0, 1}


def test_new_rows_carry_prompt_and_payload() -> None:
    bench = Bench()
    request = bench.add("a", [3, 1, 2])
    plan = bench.loop.launch()
    assert plan is not None
    (new,) = plan.admitted
    assert (new.request_id, new.num_prompt_tokens, new.payload) == ("a", 3, request)
    assert new.token_ids.tolist() == [3, 1, 2]
    assert new.token_ids.dtype == np.int32


# Prefix cache


@pytest.mark.parametrize(("match_prefix", "num_cached"), [(True, 8), (False, 0)])
def test_prefix_hits_are_skipped_and_reported(match_prefix: bool, num_cached: int) -> None:
    bench = Bench()
    prompt = list(range(10))
    bench.add("a", prompt)
    bench.run_and_check()
    bench.add("b", [*prompt, 77], match_prefix=match_prefix)
    assert rows(bench.loop.launch()) == [(0, num_cached, 11 - num_cached, True)]
    bench.loop.land()
    bench.run_and_check()
    assert bench.loop.results["b"].num_cached_tokens == num_cached
    assert bench.scheduler.stats().prefix_hits == num_cached


def test_nothing_is_shared_before_its_step_has_run() -> None:
    bench = Bench(depth=2)
    bench.add("a", list(range(12)))
    bench.loop.launch()
    bench.add("b", list(range(12)))
    assert (0, 12, 1, True) in rows(bench.loop.launch())
    assert bench.loop.plans[1].num_computed.tolist() == [12, 0]
    bench.run_and_check()


def test_other_salts_do_not_share() -> None:
    bench = Bench()
    for name, salt in (("a", b"x"), ("b", b"y"), ("c", b"x")):
        bench.add(name, list(range(9)), salt=salt)
        bench.run_and_check()
    assert [bench.loop.results[name].num_cached_tokens for name in "abc"] == [0, 0, 8]


# Order of calls


def test_plans_are_bounded_and_updated_in_order() -> None:
    bench = Bench()
    bench.add("a", max_tokens=9)
    first, second = bench.scheduler.schedule(), bench.scheduler.schedule()
    assert first is not None
    assert second is not None
    with pytest.raises(PlanOrderError):
        bench.scheduler.schedule()
    with pytest.raises(PlanOrderError):
        bench.scheduler.update(second, StepResult(1, Ragged.from_rows([[1]])))
    bench.scheduler.update(first, StepResult(0, Ragged.from_rows([[1]])))
    with pytest.raises(PlanOrderError):
        bench.scheduler.fail(first, "again")
    bench.scheduler.update(second, StepResult(1, Ragged.from_rows([[1]])))


@pytest.mark.parametrize(
    "result",
    [
        StepResult(1, Ragged.from_rows([[1], [1]])),
        StepResult(0, Ragged.from_rows([[1]])),
        StepResult(0, Ragged.from_rows([[1], []])),
        StepResult(0, Ragged.from_rows([[1], [-1]])),
        StepResult(0, Ragged(np.array([1, 2], np.int32), np.array([0, 3, 2], np.int32))),
        StepResult(0, Ragged(np.array([1.0, 2.0]), np.array([0, 1, 2], np.int32))),  # type: ignore[arg-type]
        StepResult(0, Ragged.from_rows([[1], [1]]), faults={2: "x"}),
        StepResult(0, Ragged.from_rows([[1], [1]]), logprobs={-1: "x"}),
    ],
)
def test_a_result_that_does_not_fit_changes_nothing(result: StepResult) -> None:
    bench = Bench()
    bench.add("a")
    bench.add("b")
    plan = bench.loop.launch()
    assert plan is not None
    with pytest.raises(InvalidResult):
        bench.scheduler.update(plan, result)
    bench.loop.land()
    bench.run_and_check()


def test_several_tokens_with_a_later_plan_in_flight_are_refused() -> None:
    bench = Bench()
    bench.add("a", max_tokens=9)
    first, _ = bench.scheduler.schedule(), bench.scheduler.schedule()
    assert first is not None
    with pytest.raises(InvalidResult):
        bench.scheduler.update(first, StepResult(0, Ragged.from_rows([[1, 2]])))


def test_stats_count() -> None:
    bench = Bench(max_num_seqs=1)
    bench.add("a", 9, max_tokens=3)
    bench.add("b", 7)
    bench.loop.launch()
    stats = bench.scheduler.stats()
    assert (stats.running, stats.waiting, stats.waiting_tokens, stats.plans_in_flight) == (1, 1, 7, 1)
    assert (stats.num_blocks, stats.used_blocks, stats.kv_usage) == (64, 3, 3 / 64)
    bench.loop.land()
    bench.run_and_check()
    stats = bench.scheduler.stats()
    assert stats.finished_length == 2
    assert stats.scheduled_tokens == 9 + 2 + 7 + 3
    assert stats.steps == 3 + 4
