"""Requests that wait for something besides a slot: grammars and KV from elsewhere."""

from __future__ import annotations

from typing import Any

import pytest
from llm_scheduler import InvalidRequest, InvalidResult
from scheduler_bench import BLOCK_SIZE, Bench, admitted, rows
from scheduler_peer import SimulatedPeer

# Grammars


def test_a_request_runs_once_all_it_waits_for_is_ready_and_holds_up_nobody() -> None:
    bench = Bench(max_num_seqs=1)
    bench.add("a", 5, max_tokens=2, waits_for=frozenset({"grammar", "image"}))
    bench.add("b", 5, max_tokens=2)
    bench.add("c", 5, max_tokens=2)
    assert admitted(bench.loop.launch()) == ["b"]
    bench.loop.land()
    assert bench.scheduler.stats().not_ready == 1
    assert bench.scheduler.ready("a", "image")
    assert not bench.scheduler.ready("a", "image")
    assert not bench.scheduler.ready("a", "nonsense")
    assert not bench.scheduler.ready("nobody", "grammar")
    assert bench.scheduler.stats().not_ready == 1
    assert bench.scheduler.ready("a", "grammar")
    assert bench.scheduler.stats().not_ready == 0
    bench.run_and_check()
    order = [name for plan in bench.loop.plans for name in admitted(plan)]
    assert order == ["b", "a", "c"], "it keeps its place by arrival"


def test_a_request_that_is_not_ready_is_work_and_may_be_aborted() -> None:
    bench = Bench()
    bench.add("a", 5, waits_for=frozenset({"grammar"}))
    assert bench.loop.launch() is None
    assert bench.scheduler.has_work()
    assert bench.scheduler.stats().waiting == 1
    assert bench.loop.abort(["a"]) == ["a"]
    assert not bench.scheduler.has_work()
    assert not bench.scheduler.ready("a", "grammar")


def test_what_is_not_ready_counts_against_the_bound_of_the_queue() -> None:
    bench = Bench(max_waiting_tokens=10)
    bench.add("a", 8, waits_for=frozenset({"grammar"}))
    assert bench.scheduler.stats().waiting_tokens == 8


@pytest.mark.parametrize("names", ["grammar", 3, frozenset({1})])
def test_malformed_names_are_refused(names: Any) -> None:
    with pytest.raises(InvalidRequest) as caught:
        Bench().add("a", 5, waits_for=names)
    assert caught.value.field == "waits_for"


# KV from elsewhere


class RemoteBench(Bench):
    def __init__(self, num_tokens: int, can_cancel: bool = False, **options: Any) -> None:
        self.now_s = 0.0
        self.peer = SimulatedPeer(num_tokens, BLOCK_SIZE, can_cancel)
        super().__init__(parts={"remote_kv": self.peer, "clock": lambda: self.now_s}, **options)
        self.peer.connect(self.scheduler, self.loop.worker)


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("arrived", [None, 9, 4, 0])
def test_a_request_runs_from_where_its_kv_arrived(depth: int, arrived: int | None) -> None:
    bench = RemoteBench(12, depth=depth)
    bench.add("a", 20)
    bench.add("b", 10)
    assert bench.loop.launch() is None
    assert bench.scheduler.stats().loading == 2
    assert bench.peer.loads["b"].num_tokens == 9, "the last known token is never brought"
    assert bench.peer.finish("b")
    assert rows(bench.loop.launch()) == [(1, 9, 1, True)]
    assert bench.scheduler.stats().loading == 1
    assert bench.peer.finish("a", arrived)
    plan = bench.loop.launch()
    num_computed = 12 if arrived is None else arrived
    assert (0, num_computed, 20 - num_computed, True) in rows(plan)
    assert admitted(plan) == ["a"]
    bench.run_and_check()
    assert bench.loop.results["a"].num_cached_tokens == num_computed


def test_only_what_the_prefix_cache_lacks_is_brought_and_then_found_by_others() -> None:
    bench = RemoteBench(0)
    prompt = list(range(24))
    bench.add("warm", prompt[:9], max_tokens=1)
    bench.run_and_check()
    bench.peer.num_tokens = 20
    bench.add("a", prompt)
    assert bench.loop.launch() is None
    assert (bench.peer.loads["a"].start, bench.peer.loads["a"].num_tokens) == (8, 12)
    bench.peer.finish("a")
    bench.loop.step()
    bench.peer.num_tokens = 0
    bench.add("b", [*prompt[:20], 99, 98])
    bench.run_and_check()
    assert bench.loop.results["b"].num_cached_tokens == 20


def test_others_run_meanwhile() -> None:
    bench = RemoteBench(8)
    bench.add("a", 20)
    bench.add("b", 20, match_prefix=False)
    assert admitted(bench.loop.launch()) == ["b"]
    bench.loop.land()
    bench.peer.finish("a")
    bench.run_and_check()


@pytest.mark.parametrize("can_cancel", [True, False])
def test_an_aborted_request_keeps_its_blocks_until_the_transfer_is_over(can_cancel: bool) -> None:
    bench = RemoteBench(8, can_cancel, max_num_seqs=1)
    bench.add("a", 20)
    bench.loop.launch()
    assert bench.loop.abort(["a"]) == ["a"]
    assert bench.peer.cancelled == ["a"]
    assert bench.scheduler.stats().used_blocks == (0 if can_cancel else 5)
    assert not bench.scheduler.has_work()
    bench.peer.num_tokens = 0
    bench.add("a", 6)
    bench.loop.step()
    if not can_cancel:
        bench.peer.num_tokens = 8
        assert not bench.peer.finish("a"), "the id lives on, but not the request that the transfer was for"
    bench.run_and_check()
    assert not bench.scheduler.kv_arrived("a", 3)


def test_an_id_whose_old_transfer_goes_on_brings_nothing() -> None:
    bench = RemoteBench(8)
    bench.add("a", 20)
    bench.loop.launch()
    bench.loop.abort(["a"])
    bench.add("a", 20)
    assert admitted(bench.loop.launch()) == ["a"]
    bench.loop.land()
    bench.peer.finish("a")
    bench.run_and_check()


@pytest.mark.parametrize("can_cancel", [True, False])
def test_a_request_computes_what_does_not_arrive_in_time(can_cancel: bool) -> None:
    bench = RemoteBench(8, can_cancel, remote_kv_timeout_s=5.0)
    bench.add("a", 20)
    bench.loop.launch()
    bench.now_s = 4.9
    assert bench.loop.launch() is None
    bench.now_s = 5.0
    assert rows(bench.loop.launch()) == [(0, 0, 20, True)]
    assert bench.scheduler.stats().used_blocks == (5 if can_cancel else 10)
    bench.loop.land()
    if not can_cancel:
        assert not bench.peer.finish("a")
    bench.run_and_check()


def test_more_than_was_asked_for_is_refused() -> None:
    bench = RemoteBench(8)
    bench.add("a", 20)
    bench.loop.launch()
    for num_tokens in (9, -1, True):
        with pytest.raises(InvalidResult) as caught:
            bench.scheduler.kv_arrived("a", num_tokens)
        assert caught.value.field == "num_tokens"
    bench.peer.finish("a")
    bench.run_and_check()


def test_a_preempted_request_does_not_ask_again() -> None:
    bench = RemoteBench(8, num_blocks=7, caching=False)
    bench.add("a", 8, max_tokens=12)
    bench.add("b", 8, max_tokens=12)
    bench.loop.launch()
    bench.peer.finish("a")
    bench.peer.finish("b")
    bench.run_and_check()
    assert bench.scheduler.stats().preemptions > 0


def test_what_is_brought_is_not_charged_to_the_tenant() -> None:
    bench = RemoteBench(16, policy="fair")
    bench.add("a", 20, tenant="a")
    bench.loop.launch()
    bench.peer.finish("a")
    bench.loop.step()
    bench.scheduler._meter.settle()
    assert bench.scheduler._policy.lane_key("a") == 4.0
    bench.run_and_check()
