"""How requests end: stops, lengths, aborts, faults and failed steps."""

from __future__ import annotations

import pytest
from llm_scheduler import (
    Ragged,
    StepResult,
)
from scheduler_bench import RULE, Bench, bench_request, hash_of, rows

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
