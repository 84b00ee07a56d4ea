"""Order of admission and preemption of the default scheduler."""

from __future__ import annotations

from typing import Any

import pytest
from scheduler_bench import RULE, Bench, admitted, bench_request, rows


def test_priority_orders_admission() -> None:
    bench = Bench(max_num_seqs=1, policy="priority")
    bench.add("low", priority=5, arrival_s=0.0)
    bench.add("late", priority=1, arrival_s=2.0)
    bench.add("early", priority=1, arrival_s=1.0)
    bench.run_and_check()
    assert [name for plan in bench.loop.plans for name in admitted(plan)] == ["early", "late", "low"]


def test_fcfs_goes_by_arrival_then_by_order_of_add() -> None:
    bench = Bench(max_num_seqs=1)
    for name, arrival_s in (("b", 2.0), ("c", 2.0), ("a", 1.0)):
        bench.add(name, arrival_s=arrival_s, priority=-ord(name))
    bench.run_and_check()
    assert [name for plan in bench.loop.plans for name in admitted(plan)] == ["a", "b", "c"]


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("caching", [True, False])
@pytest.mark.parametrize("policy", ["fcfs", "priority"])
def test_preempted_requests_yield_the_same(depth: int, caching: bool, policy: str) -> None:
    bench = Bench(num_blocks=10, depth=depth, caching=caching, policy=policy)
    for index, name in enumerate("abcd"):
        bench.add(name, 7, max_tokens=20, priority=-index)
    bench.run_and_check()
    assert bench.scheduler.stats().preemptions > 0


def test_the_last_in_order_is_preempted_and_comes_back_with_its_outputs() -> None:
    bench = Bench(num_blocks=6, caching=False)
    bench.add("a", 8, max_tokens=12)
    bench.add("b", 8, max_tokens=12)
    while not bench.scheduler.stats().preemptions:
        bench.loop.step()
    assert bench.scheduler.stats().waiting == 1
    plan = bench.loop.plans[-1]
    assert admitted(plan) == []
    assert plan.slots.tolist() == [0]
    assert plan.released.tolist() == [1]
    bench.run_and_check()
    again = [row for plan in bench.loop.plans for row in plan.admitted if row.request_id == "b"][1]
    assert again.num_prompt_tokens == 8
    assert len(again.token_ids) > 8
    assert again.token_ids[8:].tolist() == bench.expected("b")[0][: len(again.token_ids) - 8]


def test_a_preempted_request_waits_for_its_token_in_flight() -> None:
    bench = Bench(num_blocks=6, depth=2, caching=False)
    bench.add("a", 8, max_tokens=12)
    bench.add("b", 8, max_tokens=12)
    bench.loop.launch()
    while not bench.scheduler.stats().preemptions:
        bench.loop.launch()
        bench.loop.land()
    bench.scheduler.abort(["a"])
    assert bench.loop.in_flight
    bench.loop.results["a"].reason = "abort"
    assert bench.scheduler.stats().waiting == 1
    bench.run_and_check(but=("a",))


def test_a_row_waits_a_step_for_blocks_that_an_ended_request_still_holds() -> None:
    bench = Bench(num_blocks=3, depth=2, caching=False)
    stop = RULE.expected(bench_request([1, 2, 3], 8), 200)[0][0]
    bench.add("a", 7, max_tokens=5)
    bench.add("b", [1, 2, 3], max_tokens=8, stop_token_ids=frozenset({stop}))
    bench.loop.launch()
    bench.loop.launch()
    bench.loop.land()
    assert bench.loop.results["b"].reason == "stop"
    assert bench.loop.launch() is None
    bench.loop.land()
    assert rows(bench.loop.launch()) == [(0, 8, 1, True)]
    bench.run_and_check()
    assert bench.scheduler.stats().preemptions == 0


def test_a_request_that_waits_for_blocks_goes_in_when_they_come_back() -> None:
    bench = Bench(num_blocks=6, caching=False)
    bench.add("a", 15, max_tokens=4)
    bench.add("b", 15, max_tokens=4)
    assert admitted(bench.loop.launch()) == ["a"]
    bench.loop.land()
    for _ in range(2):
        assert admitted(bench.loop.launch()) == []
        bench.loop.land()
    bench.run_and_check()


# Urgency


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("short_of", ["slots", "blocks"])
def test_an_urgent_request_takes_the_place_of_a_less_urgent_one(depth: int, short_of: str) -> None:
    room: dict[str, Any] = {"max_num_seqs": 1} if short_of == "slots" else {"num_blocks": 8}
    bench = Bench(depth=depth, policy="priority", caching=False, **room)
    bench.add("low", 12, max_tokens=20, priority=5)
    for _ in range(4):
        bench.loop.step()
    bench.add("high", 16, max_tokens=4, priority=1)
    while bench.loop.results["high"].reason is None:
        bench.loop.step()
    assert bench.loop.results["low"].reason is None
    assert bench.scheduler.stats().preemptions == 1
    bench.run_and_check()
    assert bench.scheduler.stats().preemptions == 1, "and it is not preempted again"


@pytest.mark.parametrize("priority", [5, 9])
def test_nobody_is_preempted_for_one_as_urgent_or_less(priority: int) -> None:
    bench = Bench(policy="priority", max_num_seqs=1)
    bench.add("first", 12, max_tokens=20, priority=5)
    bench.loop.step()
    bench.add("second", 3, priority=priority, arrival_s=-1.0)
    bench.run_and_check()
    assert bench.scheduler.stats().preemptions == 0


def test_nobody_is_preempted_where_nothing_is_short() -> None:
    bench = Bench(policy="priority")
    bench.add("low", 12, max_tokens=20, priority=5)
    bench.loop.step()
    bench.add("high", 3, priority=1)
    assert admitted(bench.loop.launch()) == ["high"]
    bench.loop.land()
    bench.run_and_check()
    assert bench.scheduler.stats().preemptions == 0


def test_nobody_is_preempted_where_it_would_not_suffice() -> None:
    bench = Bench(policy="priority", num_blocks=10, caching=False)
    bench.add("first", 20, max_tokens=4, priority=0)
    bench.add("low", 5, max_tokens=3, priority=5)
    bench.loop.step()
    bench.add("urgent", 21, max_tokens=3, priority=1)
    bench.run_and_check()
    assert bench.scheduler.stats().preemptions == 0
    assert [name for plan in bench.loop.plans for name in admitted(plan)] == ["first", "low", "urgent"]


def test_a_chunk_of_an_urgent_request_comes_before_that_of_a_running_one() -> None:
    bench = Bench(policy="priority", max_num_batched_tokens=8)
    bench.add("low", 40, priority=5)
    bench.loop.step()
    bench.add("high", 6, priority=1)
    assert rows(bench.loop.launch()) == [(0, 8, 2, False), (1, 0, 6, True)]
    bench.loop.land()
    bench.run_and_check()


def test_an_urgent_request_that_gets_no_budget_is_introduced_when_it_does() -> None:
    bench = Bench(policy="priority", max_num_batched_tokens=2, max_num_seqs=4)
    for name in "abc":
        bench.add(name, 1, max_tokens=20, priority=5)
    bench.loop.step()
    bench.loop.step()
    bench.add("high", 6, max_tokens=2, priority=1)
    bench.loop.step()
    bench.loop.abort(["high"])
    bench.run_and_check(but=("high",))


def test_a_preempted_request_does_not_come_back_only_to_be_preempted_again() -> None:
    bench = Bench(num_blocks=12, caching=False)
    for name in "abcd":
        bench.add(name, 7, max_tokens=24)
    bench.run_and_check()
    assert bench.scheduler.stats().preemptions <= 4
