"""Each cap on the real scheduler: what it holds back, what passes, and that everything still ends."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from llm_scheduler import (
    Cap,
    DraftLengths,
    EncoderItem,
    InvalidConfig,
    InvalidRequest,
    LoraSlots,
    Request,
    SchedulerConfig,
)
from scheduler_bench import Bench, admitted, rows


def running_by(bench: Bench, field: str) -> Counter[str]:
    return Counter(getattr(state.request, field) for state in bench.scheduler._residency.running)


@pytest.mark.parametrize("policy", ["fcfs", "priority", "fair", "prefix"])
@pytest.mark.parametrize("most", [1, 2])
def test_at_most_so_many_adapters_run_at_once(policy: str, most: int) -> None:
    bench = Bench(num_blocks=200, policy=policy, max_loras=most, max_num_seqs=6)
    for index in range(20):
        lora = [None, "x", "y", "z"][index % 4]
        bench.add(f"{index}", 5, max_tokens=3 + index % 5, lora=lora, tenant=f"{index % 3}")
    while bench.scheduler.has_work():
        bench.loop.step()
        assert len(running_by(bench, "lora").keys() - {None}) <= most
    bench.run_and_check()


def test_a_request_whose_adapter_does_not_fit_is_passed() -> None:
    bench = Bench(max_loras=1)
    for name, lora in (("a", "x"), ("b", "y"), ("c", "x"), ("d", None)):
        bench.add(name, 5, lora=lora)
    assert admitted(bench.loop.launch()) == ["a", "c", "d"]
    bench.loop.land()
    bench.run_and_check()


def test_a_tenant_runs_no_more_than_its_most_and_others_pass_its_flood() -> None:
    bench = Bench(num_blocks=400, max_num_seqs=8, max_num_seqs_per_tenant=3)
    for index in range(60):
        bench.add(f"flood{index}", 5, tenant="flood")
    bench.add("other", 5, tenant="other")
    assert admitted(bench.loop.launch()) == ["flood0", "flood1", "flood2", "other"]
    bench.loop.land()
    while bench.scheduler.has_work():
        bench.loop.step()
        assert max(running_by(bench, "tenant").values(), default=0) <= 3
    bench.run_and_check()


def test_a_refused_queue_is_not_asked_again_before_something_changes() -> None:
    class Counting(Cap):
        num_asked = 0

        def admits(self, request: Request) -> bool:
            self.num_asked += 1
            return request.request_id == "a"

    cap = Counting()
    bench = Bench(parts={"caps": [cap]})
    bench.add("a", 5, max_tokens=10)
    for index in range(20):
        bench.add(f"{index}", 5)
    for _ in range(5):
        bench.loop.step()
    assert cap.num_asked == 1 + 20 + 20, "all at first, and once more because a request has entered"
    bench.loop.abort(["a"])
    bench.loop.step()
    assert cap.num_asked == 41 + 20


@pytest.mark.parametrize("policy", ["fcfs", "priority"])
def test_aging_passes_over_what_a_cap_holds_back(policy: str) -> None:
    bench = Bench(max_num_seqs=2, policy=policy, aging=1, max_num_seqs_per_tenant=1)
    bench.add("runs", 5, max_tokens=60, tenant="a")
    bench.loop.step()
    bench.add("held back", 5, tenant="a", priority=9)
    for index in range(6):
        bench.add(f"b{index}", 3, max_tokens=2, tenant="b", priority=1 + index % 2)
    for _ in range(14):
        bench.loop.step()
    assert all(bench.loop.results[f"b{index}"].reason for index in range(6))
    bench.run_and_check()


@pytest.mark.parametrize("patience", [1, 5])
@pytest.mark.parametrize("slots", [1, 4])
def test_a_steady_stream_for_a_running_adapter_does_not_starve_another(patience: int, slots: int) -> None:
    bench = Bench(num_blocks=400, max_num_seqs=slots, parts={"caps": [LoraSlots(1, patience)]})
    bench.add("first", 3, max_tokens=3, lora="x")
    bench.loop.step()
    bench.add("patient", 3, max_tokens=3, lora="y")
    passed = 0
    for turn in range(100):
        for index in range(slots):
            bench.add(f"{turn}.{index}", 3, max_tokens=3, lora="x")
        plan = bench.loop.launch()
        if plan is not None:
            bench.loop.land()
            if "patient" in admitted(plan):
                break
            passed += len(plan.admitted)
    else:
        raise AssertionError("starved")
    assert passed <= patience + slots
    bench.run_and_check()


def test_an_adapter_that_was_starved_and_then_aborted_holds_up_nobody() -> None:
    bench = Bench(max_num_seqs=2, parts={"caps": [LoraSlots(1, 1)]})
    bench.add("runs", 3, max_tokens=40, lora="x")
    bench.loop.step()
    bench.add("starved", 3, lora="y")
    bench.add("passes", 3, max_tokens=2, lora="x")
    for _ in range(4):
        bench.loop.step()
    bench.add("held up", 3, max_tokens=2, lora="x")
    bench.loop.step()
    assert bench.scheduler.stats().running == 1
    bench.loop.abort(["starved"])
    bench.loop.step()
    assert bench.scheduler.stats().running == 2
    bench.run_and_check(but=("starved",))


# Long prompts


def test_long_prompts_get_their_share_while_others_want_some() -> None:
    bench = Bench(max_num_batched_tokens=16, long_prefill_share=0.5, long_prompt_tokens=10)
    bench.add("long", 60)
    assert rows(bench.loop.launch()) == [(0, 0, 16, False)]
    bench.loop.land()
    bench.add("long too", 30)
    bench.add("short", 10)
    assert rows(bench.loop.launch()) == [(0, 16, 8, False), (2, 0, 8, False)]
    bench.loop.land()
    bench.run_and_check()


def test_the_rest_of_a_long_prompt_is_short() -> None:
    bench = Bench(max_num_batched_tokens=16, long_prefill_share=0.25, long_prompt_tokens=10)
    bench.add("long", 24)
    bench.loop.step()
    bench.add("other", 40)
    assert rows(bench.loop.launch()) == [(0, 16, 8, True), (1, 0, 4, False)]
    bench.loop.land()
    bench.run_and_check()


# Encoders


def items(*triples: tuple[int, int, int]) -> tuple[EncoderItem, ...]:
    return tuple(EncoderItem(position=p, num_tokens=n, encoder_tokens=e) for p, n, e in triples)


def test_a_chunk_stops_before_an_item_that_does_not_fit() -> None:
    bench = Bench(encoder_budget=10, caching=False)
    bench.add("a", 20, encoder_items=items((2, 4, 6), (10, 4, 6)))
    bench.add("b", 8, encoder_items=items((3, 2, 4)))
    bench.add("c", 8, encoder_items=items((3, 2, 1)))
    assert rows(bench.loop.launch()) == [(0, 0, 10, False), (1, 0, 8, True), (2, 0, 3, False)]
    bench.loop.land()
    assert rows(bench.loop.launch()) == [(1, 8, 1, True), (0, 10, 10, True), (2, 3, 5, True)]
    bench.loop.land()
    bench.run_and_check()


def test_an_item_at_the_start_that_does_not_fit_waits_for_the_next_step() -> None:
    bench = Bench(encoder_budget=10)
    bench.add("a", 6, encoder_items=items((0, 4, 10)))
    bench.add("b", 6, encoder_items=items((0, 4, 10)))
    assert rows(bench.loop.launch()) == [(0, 0, 6, True)]
    bench.loop.land()
    plan = bench.loop.launch()
    assert rows(plan) == [(0, 6, 1, True), (1, 0, 6, True)]
    assert admitted(plan) == ["b"]
    bench.loop.land()
    bench.run_and_check()


def test_what_was_put_off_has_first_call_on_the_next_budget() -> None:
    bench = Bench(encoder_budget=10, policy="priority", max_num_batched_tokens=64, num_blocks=200)
    bench.add("big", 6, priority=9, encoder_items=items((0, 4, 10)))
    bench.add("first", 6, priority=0, encoder_items=items((0, 4, 1)))
    for turn in range(5):
        plan = bench.loop.launch()
        assert plan is not None
        bench.loop.land()
        if "big" in admitted(plan):
            break
        bench.add(f"better{turn}", 6, priority=0, encoder_items=items((0, 4, 1)))
    assert turn == 1
    bench.run_and_check()


def test_an_item_above_the_budget_runs_as_the_first_of_a_step() -> None:
    bench = Bench(encoder_budget=10)
    bench.add("a", 6, encoder_items=items((1, 4, 4)))
    bench.add("b", 6, encoder_items=items((1, 4, 99)))
    assert rows(bench.loop.launch()) == [(1, 0, 1, False), (0, 0, 6, True)]
    bench.loop.land()
    assert rows(bench.loop.launch()) == [(0, 6, 1, True), (1, 1, 5, True)]
    bench.loop.land()
    bench.run_and_check()


def test_an_item_that_a_prefix_hit_cuts_is_encoded_again_and_a_covered_one_is_not() -> None:
    bench = Bench(encoder_budget=10)
    prompt = list(range(20))
    media = items((0, 3, 9), (6, 4, 8))
    bench.add("a", prompt[:9], max_tokens=1, encoder_items=media[:1])
    bench.run_and_check()
    bench.add("b", [*prompt, 3], encoder_items=media)
    bench.add("c", 5, encoder_items=items((0, 1, 3)))
    assert [row[1:3] for row in rows(bench.loop.launch())] == [(8, 13)]
    bench.loop.land()
    bench.run_and_check()


@pytest.mark.parametrize(
    "media",
    [
        [EncoderItem(position=0, num_tokens=1, encoder_tokens=1)],
        ((0, 1, 1),),
        items((-1, 2, 1)),
        items((0, 0, 1)),
        items((0, 1, 0)),
        items((0, 1, True)),
        items((0, 3, 1), (2, 1, 1)),
        items((4, 2, 1)),
    ],
)
def test_malformed_items_are_refused(media: Any) -> None:
    with pytest.raises(InvalidRequest) as caught:
        Bench().add("a", 5, encoder_items=media)
    assert caught.value.field == "encoder_items"


# Settings


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_loras", 0),
        ("max_num_seqs_per_tenant", 1.5),
        ("encoder_budget", -1),
        ("long_prefill_share", 0.0),
        ("long_prefill_share", 1.5),
        ("long_prefill_share", float("nan")),
        ("long_prompt_tokens", 0),
        ("max_draft_tokens", -1),
        ("draft_lengths", ((4, 1), (4, 2))),
        ("draft_lengths", ((0, 1),)),
        ("draft_lengths", ((4, -1),)),
        ("draft_lengths", ((4, 1, 2),)),
        ("draft_lengths", (4,)),
        ("draft_lengths", "4"),
        ("remote_kv_timeout_s", 0),
        ("remote_kv_timeout_s", float("inf")),
    ],
)
def test_bad_settings_of_caps_are_refused(name: str, value: object) -> None:
    with pytest.raises(InvalidConfig) as caught:
        SchedulerConfig(max_model_len=100, **{name: value})
    assert caught.value.field == name


def test_draft_lengths_fall_with_the_batch() -> None:
    cap = DraftLengths(((2, 4), (8, 1)))
    assert [cap.most_drafts(num_rows) for num_rows in (1, 2, 3, 8, 9)] == [4, 4, 1, 1, 0]


def test_a_cap_without_methods_limits_nothing() -> None:
    bench = Bench(parts={"caps": [Cap()]})
    assert not bench.scheduler._caps.limits_admission
    assert not bench.scheduler._caps.limits_prompts
    bench.add("a", np.arange(9).tolist())
    bench.run_and_check()
