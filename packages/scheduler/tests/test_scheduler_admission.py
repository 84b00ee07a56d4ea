"""What is refused at the door: requests, settings, a full queue."""

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
    NeverFits,
    Ragged,
    Request,
    SchedulerConfig,
    StepResult,
    TokenBudgetScheduler,
)
from scheduler_bench import Bench


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
        ({"salt": "text"}, "salt"),
        ({"lora": 5}, "lora"),
        ({"media": ((1, "no bytes"),)}, "media"),
        ({"media": ((2, b"beyond"),)}, "media"),
        ({"match_prefix": "no"}, "match_prefix"),
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


def test_placeholders_of_different_images_share_nothing() -> None:
    bench = Bench()
    prompt = [7] * 9
    for name, digest, cached in (("a", b"cat", 0), ("b", b"dog", 0), ("c", b"cat", 8)):
        media = ((0, digest),)
        request = Request(request_id=name, token_ids=np.array(prompt, np.int32), max_tokens=2, media=media)
        bench.scheduler.add(request)
        plan = bench.scheduler.schedule()
        assert plan is not None
        assert plan.num_computed.tolist() == [cached]
        bench.scheduler.update(plan, StepResult(plan.step_id, Ragged.from_rows([[1]])))
        bench.scheduler.abort([name])


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
    with pytest.raises(InvalidConfig, match="deadline, fair, fcfs, prefix, priority"):
        Bench(policy="sjf")
