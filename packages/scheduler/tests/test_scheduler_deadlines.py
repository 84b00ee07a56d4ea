"""Deadlines: refused at the door, given up in the queue, estimated from measured steps."""

from __future__ import annotations

from typing import Any

import pytest
from llm_scheduler import DeadlineUnmet, FixedServiceTime, InvalidRequest, MeasuredServiceTime, ServiceTime
from scheduler_bench import Bench, admitted

SERVICE = FixedServiceTime(prompt_token_s=0.1, output_token_s=1.0)


class Clocked(Bench):
    """A bench with a clock that the test moves."""

    def __init__(self, service: ServiceTime = SERVICE, **options: Any) -> None:
        self.now_s = 0.0
        parts = {"clock": lambda: self.now_s, "service_time": service}
        super().__init__(parts=parts, **options)


@pytest.mark.parametrize("policy", ["fcfs", "priority", "fair", "deadline", "prefix"])
@pytest.mark.parametrize(
    ("min_tokens", "deadline_s", "late_s"),
    [(0, 2.0, 0.0), (0, 1.9, 0.1), (3, 4.0, 0.0), (3, 3.0, 1.0), (0, -5.0, 7.0)],
)
def test_what_cannot_be_met_is_refused(
    policy: str, min_tokens: int, deadline_s: float, late_s: float
) -> None:
    bench = Clocked(policy=policy)
    fields = {"max_tokens": 50, "min_tokens": min_tokens, "deadline_s": deadline_s}
    if not late_s:
        bench.add("a", 10, **fields)
        return
    with pytest.raises(DeadlineUnmet) as caught:
        bench.add("a", 10, **fields)
    assert caught.value.request_id == "a"
    assert caught.value.late_s == pytest.approx(late_s)
    assert not bench.scheduler.has_work()
    bench.add("a", 10)
    bench.run_and_check()


def test_only_what_waits_before_it_delays_it() -> None:
    bench = Clocked(policy="deadline")
    bench.add("before", 20, deadline_s=5.0)
    bench.add("before too", 20, deadline_s=5.0)
    bench.add("behind", 20, deadline_s=100.0)
    with pytest.raises(DeadlineUnmet) as caught:
        bench.add("late", 10, deadline_s=5.5)
    assert caught.value.late_s == pytest.approx(4.0 + 2.0 - 5.5)
    bench.add("in time", 10, deadline_s=6.0)


@pytest.mark.parametrize("policy", ["fcfs", "deadline"])
@pytest.mark.parametrize("in_flight", [False, True])
def test_a_waiting_request_ends_when_its_deadline_is_out_of_reach(policy: str, in_flight: bool) -> None:
    bench = Clocked(policy=policy, max_num_seqs=1)
    bench.add("runs", 10, max_tokens=30, deadline_s=40.0, arrival_s=-1.0)
    bench.loop.step()
    bench.add("waits", 10, deadline_s=60.0)
    bench.add("no deadline", 10)
    bench.now_s = 58.0
    bench.loop.step()
    assert bench.loop.results["waits"].reason is None
    bench.now_s = 58.1
    if in_flight:
        bench.loop.step()
    else:
        bench.loop.abort(["runs", "no deadline"])
        assert bench.loop.launch() is None
        assert bench.scheduler.has_work(), "an output is left to be taken"
        (output,) = bench.loop.take_ended()
        assert (output.request_id, output.finish_reason, output.tokens) == ("waits", "deadline", [])
    assert bench.loop.results["waits"].reason == "deadline"
    assert bench.scheduler.take_ended() == []
    stats = bench.scheduler.stats()
    assert (stats.finished_deadline, stats.waiting) == (1, int(in_flight))
    bench.run_and_check(but=("waits",) if in_flight else ("waits", "runs", "no deadline"))


def test_a_running_request_may_be_late() -> None:
    bench = Clocked(policy="deadline")
    bench.add("a", 10, max_tokens=30, deadline_s=40.0)
    bench.loop.step()
    bench.now_s = 1000.0
    bench.run_and_check()


def test_a_preempted_request_is_watched_again() -> None:
    bench = Clocked(policy="priority", max_num_seqs=1)
    bench.add("low", 10, max_tokens=30, deadline_s=40.0, priority=5)
    for _ in range(3):
        bench.loop.step()
    bench.add("high", 10, max_tokens=5, priority=1)
    bench.loop.step()
    assert bench.scheduler.stats().preemptions == 1
    bench.now_s = 39.0
    bench.loop.step()
    result = bench.loop.results["low"]
    assert result.reason == "deadline"
    assert result.tokens == bench.expected("low")[0][: len(result.tokens)] != []
    bench.run_and_check(but=("low",))


def test_the_earliest_deadline_is_admitted_first() -> None:
    bench = Clocked(policy="deadline", max_num_seqs=1)
    for name, deadline_s in (("c", None), ("b", 500.0), ("a", 400.0)):
        bench.add(name, 5, deadline_s=deadline_s)
    bench.run_and_check()
    assert [name for plan in bench.loop.plans for name in admitted(plan)] == ["a", "b", "c"]


def test_watched_requests_do_not_pile_up() -> None:
    bench = Clocked(policy="deadline")
    for index in range(1000):
        bench.add(f"{index}", 3, max_tokens=1, deadline_s=1e6)
        bench.loop.run()
    assert len(bench.scheduler._deadlines._by_latest_start) <= 64


@pytest.mark.parametrize("deadline_s", [float("nan"), float("inf"), "soon", True])
def test_malformed_deadlines_are_refused(deadline_s: object) -> None:
    with pytest.raises(InvalidRequest) as caught:
        Bench().add("a", 3, deadline_s=deadline_s)
    assert caught.value.field == "deadline_s"


# Estimates


def test_measured_times_find_the_line_behind_the_steps() -> None:
    service = MeasuredServiceTime()
    assert service.seconds(1000, 10) == 0.0
    for num_tokens in [8, 8, 1000, 8, 8, 2000, 8, 8] * 20:
        service.observe(8, num_tokens, 0.010 + num_tokens * 1e-5)
    assert service.seconds(1000, 0) == pytest.approx(0.010, rel=0.05)
    assert 0.010 < service.seconds(0, 1) < 0.030


def test_measured_times_of_equal_steps_are_shared_by_their_tokens() -> None:
    service = MeasuredServiceTime()
    for _ in range(10):
        service.observe(8, 8, 0.008)
    assert service.seconds(100, 0) == pytest.approx(0.1)
    assert service.seconds(0, 3) == pytest.approx(0.024)


def test_steps_are_measured_without_the_time_between_them() -> None:
    service = MeasuredServiceTime()
    bench = Clocked(service, depth=2)
    bench.add("a", 4, max_tokens=6)
    bench.loop.launch()
    bench.now_s += 1.0
    bench.loop.launch()
    bench.now_s += 1.0
    bench.loop.land()  # made at 0, done at 2
    bench.now_s += 3.0
    bench.loop.land()  # began when the one before was done
    assert service.seconds(0, 1) == pytest.approx((2.0 * 0.99 + 3.0) / 1.99)
    bench.now_s += 100.0
    bench.loop.launch()
    bench.now_s += 1.0
    bench.loop.land()
    assert service.seconds(0, 1) < 3.0
