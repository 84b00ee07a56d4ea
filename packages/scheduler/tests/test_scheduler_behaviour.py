"""Each behaviour of the default scheduler, one by one, on the real cache."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from llm_kvcache import FullAttention, KVCache
from llm_scheduler import (
    Busy,
    DuplicateRequest,
    InvalidConfig,
    InvalidRequest,
    InvalidResult,
    NeverFits,
    PlanOrderError,
    Ragged,
    Request,
    Scheduler,
    SchedulerConfig,
    StepPlan,
    StepResult,
    TokenBudgetScheduler,
)
from scheduler_simulation import Loop, SimulatedWorker, TokenRule

RULE = TokenRule(vocab_size=1000)
BLOCK_SIZE = 4


class Bench:
    """A scheduler on a real cache with a checking worker."""

    def __init__(self, num_blocks: int = 64, depth: int = 1, caching: bool = True, **config: Any) -> None:
        self.config = SchedulerConfig(**{"max_model_len": 200, "max_num_seqs": 8, **config})
        self.cache = KVCache([FullAttention(BLOCK_SIZE)], num_blocks, enable_prefix_caching=caching)
        self.scheduler = TokenBudgetScheduler(self.config, self.cache)
        worker = SimulatedWorker(
            self.config.max_num_seqs, num_blocks, BLOCK_SIZE, self.config.max_model_len, RULE
        )
        self.loop = Loop(self.scheduler, worker, depth)
        self.requests: dict[str, Request] = {}

    def add(self, name: str, prompt: int | list[int] = 5, max_tokens: int = 4, **fields: Any) -> Request:
        if isinstance(prompt, int):
            prompt = [hash_of(name) + i for i in range(prompt)]
        token_ids = np.array(prompt, np.int32)
        request = Request(request_id=name, token_ids=token_ids, max_tokens=max_tokens, **fields)
        object.__setattr__(request, "payload", request)
        self.loop.add(request)
        self.requests[name] = request
        return request

    def expected(self, name: str) -> tuple[list[int], str]:
        return RULE.expected(self.requests[name], self.config.max_model_len)

    def run_and_check(self, *, but: tuple[str, ...] = ()) -> None:
        results = self.loop.run()
        for name in self.requests:
            if name not in but:
                assert (results[name].tokens, results[name].reason) == self.expected(name), name
        self.cache.check()
        assert self.scheduler.stats().used_blocks == 0


def hash_of(name: str) -> int:
    return sum(ord(letter) * 17 for letter in name)


def rows(plan: StepPlan | None) -> list[tuple[int, int, int, bool]]:
    assert plan is not None
    return list(
        zip(
            plan.slots.tolist(),
            plan.num_computed.tolist(),
            plan.num_tokens.tolist(),
            plan.samples.tolist(),
            strict=True,
        )
    )


def admitted(plan: StepPlan | None) -> list[str]:
    assert plan is not None
    return [row.request_id for row in plan.admitted]


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


# Ends


def test_max_tokens_and_model_length_end_with_length() -> None:
    bench = Bench(max_model_len=12)
    bench.add("a", 5, max_tokens=3)
    bench.add("b", 5, max_tokens=100)
    results = bench.loop.run()
    assert [len(results[name].tokens) for name in "ab"] == [3, 7]
    assert {result.reason for result in results.values()} == {"length"}


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize(
    ("min_tokens", "num_outputs", "reason"),
    [(0, 3, "stop"), (2, 3, "stop"), (3, 8, "length"), (8, 8, "length")],
)
def test_a_stop_token_ends_only_after_min_tokens(
    depth: int, min_tokens: int, num_outputs: int, reason: str
) -> None:
    bench = Bench(depth=depth)
    free_run, _ = RULE.expected(bench_request([1, 2, 3], 8), 200)
    assert free_run.count(free_run[2]) == 1
    bench.add("a", [1, 2, 3], max_tokens=8, min_tokens=min_tokens, stop_token_ids=frozenset({free_run[2]}))
    result = bench.loop.run()["a"]
    assert (result.tokens, result.reason) == (free_run[:num_outputs], reason)
    assert result.stop_token == (free_run[2] if reason == "stop" else None)


def bench_request(prompt: list[int], max_tokens: int) -> Request:
    return Request(request_id="x", token_ids=np.array(prompt, np.int32), max_tokens=max_tokens)


def test_no_row_runs_past_its_end_with_a_token_in_flight() -> None:
    bench = Bench(depth=2)
    bench.add("a", 4, max_tokens=2)
    bench.loop.launch()
    bench.loop.launch()
    bench.loop.land()
    assert bench.loop.launch() is None
    bench.loop.land()
    assert bench.loop.results["a"].reason == "length"
    assert sum(plan.total_tokens for plan in bench.loop.plans) == 5


def test_several_tokens_of_a_row_are_taken_up_to_the_stop() -> None:
    bench = Bench()
    bench.add("a", 4, max_tokens=10, stop_token_ids=frozenset({7}))
    plan = bench.scheduler.schedule()
    assert plan is not None
    (output,) = bench.scheduler.update(plan, StepResult(0, Ragged.from_rows([[5, 6]])))
    assert output.tokens == [5, 6]
    plan = bench.scheduler.schedule()
    assert rows(plan) == [(0, 4, 2, True)]
    assert plan is not None
    (output,) = bench.scheduler.update(plan, StepResult(1, Ragged.from_rows([[8, 7, 9]])))
    assert (output.tokens, output.finish_reason, output.stop_token) == ([8, 7], "stop", 7)
    assert not bench.scheduler.has_work()


def test_logprobs_pass_through() -> None:
    bench = Bench(max_num_batched_tokens=4)
    bench.add("a", 6)
    first = bench.scheduler.schedule()
    assert first is not None
    result = StepResult(0, Ragged.from_rows([[]]), prompt_logprobs={0: "chunk"})
    (output,) = bench.scheduler.update(first, result)
    assert (output.tokens, output.prompt_logprobs, output.finish_reason) == ([], "chunk", None)
    second = bench.scheduler.schedule()
    assert second is not None
    (output,) = bench.scheduler.update(second, StepResult(1, Ragged.from_rows([[9]]), logprobs={0: "lp"}))
    assert (output.tokens, output.logprobs) == ([9], "lp")


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


# Order and preemption


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


# Admission


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"request_id": ""}, "request_id"),
        ({"request_id": 3}, "request_id"),
        ({"token_ids": []}, "token_ids"),
        ({"token_ids": [[1, 2]]}, "token_ids"),
        ({"token_ids": [1.5]}, "token_ids"),
        ({"token_ids": [True]}, "token_ids"),
        ({"token_ids": [-1]}, "token_ids"),
        ({"token_ids": [2**31]}, "token_ids"),
        ({"token_ids": [1] * 200}, "token_ids"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": True}, "max_tokens"),
        ({"max_tokens": 2.0}, "max_tokens"),
        ({"min_tokens": -1}, "min_tokens"),
        ({"min_tokens": 5}, "min_tokens"),
        ({"priority": "high"}, "priority"),
        ({"arrival_s": float("nan")}, "arrival_s"),
        ({"stop_token_ids": 7}, "stop_token_ids"),
        ({"stop_token_ids": frozenset({"a"})}, "stop_token_ids"),
    ],
)
def test_malformed_requests_are_refused(fields: dict[str, Any], field: str) -> None:
    bench = Bench()
    good: dict[str, Any] = {"request_id": "a", "token_ids": [1, 2], "max_tokens": 4}
    with pytest.raises(InvalidRequest) as caught:
        bench.scheduler.add(Request(**{**good, **fields}))
    assert caught.value.field == field
    assert not bench.scheduler.has_work()


def test_a_live_id_is_refused_and_an_ended_one_may_come_again() -> None:
    bench = Bench()
    bench.add("a")
    with pytest.raises(DuplicateRequest):
        bench.add("a")
    bench.run_and_check()
    bench.add("a")
    bench.run_and_check()


@pytest.mark.parametrize(("prompt", "max_tokens", "fits"), [(20, 4, True), (20, 5, False), (24, 1, False)])
def test_what_can_never_fit_is_refused_at_once(prompt: int, max_tokens: int, fits: bool) -> None:
    bench = Bench(num_blocks=6)
    if fits:
        bench.add("a", prompt, max_tokens)
        bench.run_and_check()
        return
    with pytest.raises(NeverFits) as caught:
        bench.add("a", prompt, max_tokens)
    assert (caught.value.needed_blocks, caught.value.num_blocks) == (7, 6)
    bench.add("b", 5)
    bench.run_and_check()


def test_max_tokens_beyond_the_context_does_not_count_against_the_cache() -> None:
    bench = Bench(num_blocks=6, max_model_len=24)
    bench.add("a", 20, max_tokens=10_000)
    bench.run_and_check()


def test_the_queue_is_bounded_in_requests_and_tokens() -> None:
    bench = Bench(max_waiting_requests=2, max_waiting_tokens=20)
    bench.add("big", 30)
    with pytest.raises(Busy) as caught:
        bench.add("more", 1)
    assert caught.value.retry_after_s == 1.0
    bench.loop.step()
    bench.add("a", 3)
    bench.add("b", 3)
    with pytest.raises(Busy):
        bench.add("c", 3)
    bench.run_and_check()


def test_retry_after_follows_the_rate_of_finishing() -> None:
    clock = [0.0]
    cache = KVCache([FullAttention(4)], 64)
    config = SchedulerConfig(max_model_len=100, max_num_seqs=1, max_waiting_requests=3)
    scheduler = TokenBudgetScheduler(config, cache, clock=lambda: clock[0])
    for index in range(5):
        scheduler.add(bench_request_named(f"{index}"))
        scheduler.abort([f"{index}"])
        clock[0] += 2.0
    for name in "abc":
        scheduler.add(bench_request_named(name))
    with pytest.raises(Busy) as caught:
        scheduler.add(bench_request_named("d"))
    assert caught.value.retry_after_s == pytest.approx(2.0)


def bench_request_named(name: str) -> Request:
    return Request(request_id=name, token_ids=np.arange(3, dtype=np.int32), max_tokens=2)


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"max_num_seqs": 0}, "max_num_seqs"),
        ({"max_num_batched_tokens": -1}, "max_num_batched_tokens"),
        ({"max_model_len": 1}, "max_model_len"),
        ({"max_waiting_requests": 1.5}, "max_waiting_requests"),
        ({"long_prefill_tokens": 0}, "long_prefill_tokens"),
        ({"policy": 3}, "policy"),
    ],
)
def test_bad_settings_are_refused(fields: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidConfig) as caught:
        SchedulerConfig(**{"max_model_len": 100, **fields})
    assert caught.value.field == field


def test_an_unknown_policy_names_the_known_ones() -> None:
    with pytest.raises(InvalidConfig, match="fcfs, priority"):
        Bench(policy="sjf")


# Aborts and failures


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("steps", [0, 1, 2, 4])
def test_abort_gives_everything_back(depth: int, steps: int) -> None:
    bench = Bench(depth=depth)
    bench.add("a", 9, max_tokens=20)
    bench.add("b", 9, max_tokens=20)
    for _ in range(steps):
        bench.loop.step()
    assert bench.loop.abort(["a", "unknown", "a"]) == ["a"]
    assert bench.loop.abort(["a"]) == []
    if not bench.loop.in_flight:
        assert bench.cache.stats().sequences <= 1
    bench.run_and_check(but=("a",))
    tokens = bench.loop.results["a"].tokens
    assert tokens == bench.expected("a")[0][: len(tokens)]
    assert bench.scheduler.stats().finished_abort == 1


def test_an_aborted_request_keeps_its_blocks_until_its_plan_is_updated() -> None:
    bench = Bench()
    bench.add("a", 8)
    bench.loop.launch()
    bench.loop.abort(["a"])
    assert bench.scheduler.stats().used_blocks == 2
    assert bench.scheduler.has_work()
    assert bench.loop.land() == []
    assert bench.scheduler.stats().used_blocks == 0
    assert not bench.scheduler.has_work()


def test_an_id_may_be_used_again_while_the_aborted_one_is_in_flight() -> None:
    bench = Bench(depth=2)
    bench.add("a", 8)
    bench.loop.launch()
    bench.loop.abort(["a"])
    bench.add("a", 6)
    bench.run_and_check()


def test_a_stop_with_a_later_plan_in_flight_wastes_one_token() -> None:
    bench = Bench(depth=2)
    stop = RULE.expected(bench_request([1, 2, 3], 8), 200)[0][0]
    bench.add("a", [1, 2, 3], max_tokens=8, stop_token_ids=frozenset({stop}))
    bench.loop.launch()
    bench.loop.launch()
    bench.loop.land()
    assert bench.loop.results["a"].reason == "stop"
    assert bench.scheduler.stats().used_blocks == 1
    assert bench.loop.launch() is None
    assert bench.loop.land() == []
    assert bench.scheduler.stats().used_blocks == 0
    assert bench.loop.results["a"].tokens == [stop]


@pytest.mark.parametrize("depth", [1, 2])
def test_a_fault_ends_only_its_row(depth: int) -> None:
    bench = Bench(depth=depth)
    bench.add("a", 9)
    bench.add("b", 9)
    bench.loop.launch(lambda plan: [0])
    bench.loop.step()
    assert bench.loop.results["a"].reason == "error"
    bench.run_and_check(but=("a",))
    bench.add("again", [hash_of("a") + i for i in range(9)])
    bench.run_and_check(but=("a",))
    assert bench.loop.results["again"].num_cached_tokens == 0, "what a faulty row wrote must not be found"


@pytest.mark.parametrize("newest_first", [False, True])
def test_a_failed_step_ends_its_requests_and_caches_nothing(newest_first: bool) -> None:
    bench = Bench(depth=2, max_num_batched_tokens=9)
    bench.add("a", 9)
    bench.loop.launch(fails=not newest_first)
    bench.add("b", 8)
    bench.loop.launch(fails=newest_first)
    bench.loop.land(1 if newest_first else 0)
    assert bench.loop.results["a"].reason == "error"
    assert bench.loop.results["b"].reason == ("error" if newest_first else None)
    bench.run_and_check(but=("a", "b") if newest_first else ("a",))
    if not newest_first:
        bench.add("again", [hash_of("a") + i for i in range(9)])
        bench.run_and_check(but=("a",))
        assert bench.loop.results["again"].num_cached_tokens == 0


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
