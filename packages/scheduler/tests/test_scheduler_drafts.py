"""Draft tokens: proposed by results, checked by plans, taken back where they are rejected."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from llm_scheduler import InvalidResult, Ragged, StepPlan, StepResult
from scheduler_bench import Bench, rows


def drafting(bench: Bench, seed: int = 0, most: int = 3, right: float = 0.7) -> Bench:
    """Let the worker propose up to ``most`` tokens a row."""
    rng = random.Random(seed)
    bench.loop.propose = lambda plan: bench.loop.worker.propose(
        plan, lambda: rng.randint(0, most), lambda: rng.random() < right
    )
    return bench


def drafts_of(plan: StepPlan | None) -> list[list[int]]:
    assert plan is not None
    assert plan.drafts is not None
    return [plan.drafts.row(row).tolist() for row in range(plan.num_rows)]


def land(bench: Bench, plan: StepPlan | None, tokens: list[list[int]], drafts: Any = None) -> list[list[int]]:
    assert plan is not None
    proposed = None if drafts is None else Ragged.from_rows(drafts)
    result = StepResult(plan.step_id, Ragged.from_rows(tokens), drafts=proposed)
    return [output.tokens for output in bench.scheduler.update(plan, result)]


def test_accepted_drafts_are_outputs_and_rejected_ones_are_computed_again() -> None:
    bench = Bench(max_draft_tokens=3)
    bench.add("a", 4, max_tokens=20)
    land(bench, bench.scheduler.schedule(), [[10]], [[11, 12, 13, 14]])
    plan = bench.scheduler.schedule()
    assert rows(plan) == [(0, 4, 4, True)]
    assert drafts_of(plan) == [[11, 12, 13]]
    assert land(bench, plan, [[11, 99]], [[1]]) == [[11, 99]]
    plan = bench.scheduler.schedule()
    assert rows(plan) == [(0, 6, 2, True)]
    assert drafts_of(plan) == [[1]]
    assert land(bench, plan, [[1, 2]]) == [[1, 2]]
    plan = bench.scheduler.schedule()
    assert rows(plan) == [(0, 8, 1, True)]
    assert plan is not None
    assert plan.drafts is None
    bench.cache.check()


@pytest.mark.parametrize("tokens", [[[]], [[1, 2, 3]]])
def test_a_row_yields_one_token_to_one_more_than_its_drafts(tokens: list[list[int]]) -> None:
    bench = Bench(max_draft_tokens=3)
    bench.add("a", 4, max_tokens=20)
    land(bench, bench.scheduler.schedule(), [[10]], [[11]])
    plan = bench.scheduler.schedule()
    with pytest.raises(InvalidResult) as caught:
        land(bench, plan, tokens)
    assert caught.value.field == "tokens"
    assert land(bench, plan, [[11, 12]]) == [[11, 12]]


@pytest.mark.parametrize(
    "drafts",
    [
        Ragged.from_rows([[1], [2]]),
        Ragged.from_rows([[-1]]),
        Ragged(np.array([1.0]), np.array([0, 1], np.int32)),  # type: ignore[arg-type]
    ],
)
def test_malformed_proposals_are_refused(drafts: Ragged) -> None:
    bench = Bench(max_draft_tokens=3)
    bench.add("a", 4, max_tokens=20)
    plan = bench.scheduler.schedule()
    assert plan is not None
    with pytest.raises(InvalidResult) as caught:
        bench.scheduler.update(plan, StepResult(0, Ragged.from_rows([[10]]), drafts=drafts))
    assert caught.value.field == "drafts"


def test_no_draft_goes_past_the_end_of_a_request() -> None:
    bench = Bench(max_draft_tokens=5)
    bench.add("a", 4, max_tokens=4)
    land(bench, bench.scheduler.schedule(), [[10]], [[11, 12, 13, 14]])
    plan = bench.scheduler.schedule()
    assert drafts_of(plan) == [[11, 12]]
    land(bench, plan, [[11, 12, 13]])
    assert not bench.scheduler.has_work()


def test_drafts_come_before_chunks_and_nobody_drafts_where_the_budget_is_short() -> None:
    bench = Bench(max_draft_tokens=3, max_num_batched_tokens=8)
    bench.add("a", 4, max_tokens=20)
    bench.add("b", 4, max_tokens=20)
    land(bench, bench.scheduler.schedule(), [[1], [1]], [[1, 2], [1]])
    bench.add("c", 30)
    plan = bench.scheduler.schedule()
    assert rows(plan) == [(0, 4, 3, True), (1, 4, 2, True), (2, 0, 3, False)]
    land(bench, plan, [[1], [1], []], [[1, 2, 3], [1, 2, 3], []])
    plan = bench.scheduler.schedule()
    assert rows(plan) == [(0, 5, 4, True), (1, 5, 4, True)]
    land(bench, plan, [[1], [1]], [[1, 2, 3], [1, 2, 3]])
    bench.scheduler.abort(["c"])
    bench.add("d", 1, max_tokens=9)
    plan = bench.scheduler.schedule()
    assert plan is not None
    assert plan.num_tokens.tolist() == [4, 4]


def test_proposals_are_passed_over_unless_asked_for() -> None:
    bench = Bench()
    bench.add("a", 4, max_tokens=20)
    land(bench, bench.scheduler.schedule(), [[10]], [[11, 12]])
    assert rows(bench.scheduler.schedule()) == [(0, 4, 1, True)]


def test_draft_lengths_fall_with_the_batch() -> None:
    bench = Bench(max_draft_tokens=3, draft_lengths=((1, 3), (2, 1)))
    bench.add("a", 4, max_tokens=20)
    land(bench, bench.scheduler.schedule(), [[1]], [[1, 2, 3]])
    assert drafts_of(bench.scheduler.schedule()) == [[1, 2, 3]]
    bench = Bench(max_draft_tokens=3, draft_lengths=((1, 3), (2, 1)))
    for name in "ab":
        bench.add(name, 4, max_tokens=20)
    land(bench, bench.scheduler.schedule(), [[1], [1]], [[1, 2, 3]] * 2)
    assert drafts_of(bench.scheduler.schedule()) == [[1], [1]]


def test_a_row_with_proposals_waits_for_its_plan_and_others_do_not() -> None:
    bench = Bench(max_draft_tokens=3)
    bench.add("a", 4, max_tokens=20)
    bench.add("b", 4, max_tokens=20)
    land(bench, bench.scheduler.schedule(), [[1], [1]], [[1, 2], []])
    first = bench.scheduler.schedule()
    assert rows(first) == [(1, 4, 1, True), (0, 4, 3, True)]
    second = bench.scheduler.schedule()
    assert rows(second) == [(1, 5, 1, True)]
    land(bench, first, [[1], [1, 2, 3]], [[7], [7]])
    third = bench.scheduler.schedule()
    assert rows(third) == [(0, 7, 2, True)], "b has proposals now, but they are out of date"
    land(bench, second, [[1]], [[8]])
    assert rows(bench.scheduler.schedule()) == [(1, 6, 2, True)]


def test_nobody_is_preempted_for_drafts() -> None:
    bench = Bench(num_blocks=4, max_draft_tokens=4, caching=False)
    bench.add("a", 7, max_tokens=2)
    bench.add("b", 6, max_tokens=3)
    land(bench, bench.scheduler.schedule(), [[1], [1]], [[1], [1, 2, 3, 4]])
    plan = bench.scheduler.schedule()
    assert plan is not None
    assert bench.scheduler.stats().preemptions == 0
    assert plan.num_tokens.sum() <= 2 + 3


def test_room_for_rejected_drafts_is_used_by_the_next_tokens() -> None:
    bench = Bench(max_draft_tokens=4)
    bench.add("a", 4, max_tokens=20)
    land(bench, bench.scheduler.schedule(), [[1]], [[1, 2, 3, 4]])
    plan = bench.scheduler.schedule()
    assert plan is not None
    assert len(plan.new_blocks[0].values) == 2
    land(bench, plan, [[9]])
    for _ in range(4):
        plan = bench.scheduler.schedule()
        assert plan is not None
        assert len(plan.new_blocks[0].values) == 0
        land(bench, plan, [[9]])
    assert bench.scheduler.stats().used_blocks == 3


@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("seed", range(12))
def test_requests_with_drafts_yield_the_same(depth: int, seed: int) -> None:
    rng = random.Random(seed)
    bench = Bench(
        num_blocks=rng.choice([14, 60]),
        depth=depth,
        max_draft_tokens=rng.randint(1, 4),
        max_num_batched_tokens=rng.choice([9, 64]),
        max_plans_in_flight=depth,
    )
    drafting(bench, seed, most=5, right=rng.choice([0.3, 0.9]))
    for index in range(8):
        bench.add(f"{index}", rng.randint(1, 20), max_tokens=rng.randint(1, 30))
    bench.run_and_check()
    assert any(plan.drafts is not None for plan in bench.loop.plans)
    assert len(bench.loop.plans) < 400


def test_good_drafts_save_steps() -> None:
    def steps(right: float) -> int:
        bench = drafting(Bench(max_draft_tokens=3), most=3, right=right)
        bench.add("a", 4, max_tokens=60)
        bench.run_and_check()
        return len(bench.loop.plans)

    assert steps(1.0) < 35 < steps(0.0)


@pytest.mark.parametrize("fails", [False, True])
def test_a_fault_in_a_row_with_drafts_ends_it(fails: bool) -> None:
    bench = drafting(Bench(max_draft_tokens=3), right=0.5)
    bench.add("a", 6, max_tokens=30)
    bench.add("b", 6, max_tokens=30)
    while bench.loop.launch(lambda plan: [0], fails=fails) is not None:
        bench.loop.land()
    bench.run_and_check(but=("a", "b"))
    assert {result.reason for result in bench.loop.results.values()} == {"error"}
