"""Requests that yielded tokens under another scheduler and go on behind them."""

from __future__ import annotations

from typing import Any

import pytest
from llm_scheduler import InvalidRequest
from scheduler_bench import RULE, Bench, bench_request


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("num_known", [1, 4, 9])
def test_a_request_goes_on_behind_what_it_yielded_elsewhere(depth: int, num_known: int) -> None:
    whole, reason = RULE.expected(bench_request(list(range(7)), 12), 200)
    bench = Bench(depth=depth)
    bench.add("a", list(range(7)), max_tokens=12, output_token_ids=tuple(whole[:num_known]))
    bench.add("b", list(range(7)), max_tokens=12)
    results = bench.loop.run()
    assert (results["a"].tokens, results["a"].reason) == (whole[num_known:], reason)
    assert results["b"].tokens == whole
    row = next(row for plan in bench.loop.plans for row in plan.admitted if row.request_id == "a")
    assert row.num_prompt_tokens == 7
    assert row.token_ids.tolist() == [*range(7), *whole[:num_known]]
    bench.cache.check()
    assert bench.scheduler.stats().used_blocks == 0


def test_outputs_of_elsewhere_count_for_stop_tokens_and_survive_a_preemption() -> None:
    whole, _ = RULE.expected(bench_request(list(range(7)), 30), 200)
    stop = whole[20]
    end = whole.index(stop, 4) + 1
    bench = Bench(num_blocks=10, caching=False)
    bench.add("first", 8, max_tokens=20)
    fields = {"stop_token_ids": frozenset({stop}), "min_tokens": 4}
    bench.add("a", list(range(7)), max_tokens=30, output_token_ids=tuple(whole[:3]), **fields)
    bench.add("b", list(range(7)), max_tokens=30, output_token_ids=tuple(whole[:2]), **fields)
    results = bench.loop.run()
    assert bench.scheduler.stats().preemptions > 0
    assert (results["a"].tokens, results["a"].reason) == (whole[3:end], "stop")
    assert results["b"].tokens == whole[2:end]
    bench.cache.check()


@pytest.mark.parametrize("outputs", [(1, 2, 3, 4), (1, -2), (1, 2.0), [1], (2**31,)])
def test_outputs_that_leave_nothing_to_do_are_refused(outputs: Any) -> None:
    bench = Bench()
    with pytest.raises(InvalidRequest, match="output_token_ids"):
        bench.add("a", 5, max_tokens=4, output_token_ids=outputs)
