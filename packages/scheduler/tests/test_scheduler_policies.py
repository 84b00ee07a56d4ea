"""The order of each policy against plain references: admission, preemption, aging, shares of tenants."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from importlib.metadata import EntryPoint
from typing import Any

import pytest
from llm_scheduler import (
    FairShare,
    InvalidConfig,
    Policy,
    Request,
    SchedulerConfig,
    TokenBudgetScheduler,
    installed_policies,
    policy_loading,
)
from llm_scheduler.request import OrderKey
from scheduler_bench import BLOCK_SIZE, Bench, admitted


class ShortestPromptFirst(Policy):
    """A policy of one's own."""

    def key(self, request: Request) -> OrderKey:
        return (len(request.token_ids),)


def admission_order(bench: Bench) -> list[str]:
    return [name for plan in bench.loop.plans for name in admitted(plan)]


def infinite_if_none(value: float | None) -> float:
    return float("inf") if value is None else value


REFERENCES: dict[str, Callable[[Request], tuple[float, ...]]] = {
    "fcfs": lambda request: (request.arrival_s,),
    "priority": lambda request: (request.priority, request.arrival_s),
    "deadline": lambda request: (infinite_if_none(request.deadline_s), request.arrival_s),
    "test_scheduler_policies:ShortestPromptFirst": lambda request: (len(request.token_ids),),
}


@pytest.mark.parametrize("policy", list(REFERENCES))
@pytest.mark.parametrize("seed", range(5))
def test_static_policies_admit_in_the_order_of_a_plain_sort(policy: str, seed: int) -> None:
    rng = random.Random(seed)
    bench = Bench(max_num_seqs=1, policy=policy, aging=None)
    names = [f"r{index}" for index in range(12)]
    for name in names:
        bench.add(
            name,
            rng.randint(1, 9),
            max_tokens=2,
            priority=rng.randint(-2, 2),
            arrival_s=float(rng.randint(0, 5)),
            deadline_s=rng.choice([None, 1e12, 2e12]),
        )
    bench.run_and_check()
    assert admission_order(bench) == sorted(names, key=lambda name: REFERENCES[policy](bench.requests[name]))


def test_a_policy_object_is_used_as_it_is() -> None:
    bench = Bench(max_num_seqs=1, parts={"policy": ShortestPromptFirst()})
    for name, length in (("long", 9), ("short", 2), ("middle", 5)):
        bench.add(name, length)
    bench.run_and_check()
    assert admission_order(bench) == ["short", "middle", "long"]


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        ("sjf", "deadline, fair, fcfs, prefix, priority"),
        ("no_such_module:Policy", "imported"),
        ("llm_scheduler:NoSuchPolicy", "imported"),
        ("llm_scheduler:Request", "subclass"),
        ("llm_scheduler:installed_policies", "subclass"),
    ],
)
def test_a_policy_that_cannot_be_had_is_refused(policy: str, message: str) -> None:
    with pytest.raises(InvalidConfig, match=message) as caught:
        Bench(policy=policy)
    assert caught.value.field == "policy"


def test_a_policy_is_found_by_its_entry_point(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = EntryPoint(
        "shortest", "test_scheduler_policies:ShortestPromptFirst", policy_loading.ENTRY_POINT_GROUP
    )

    def entry_points(group: str, name: str | None = None) -> list[EntryPoint]:
        return [entry] if group == entry.group and name in (None, entry.name) else []

    monkeypatch.setattr(policy_loading, "entry_points", entry_points)
    assert "shortest" in installed_policies()
    bench = Bench(policy="shortest", max_num_seqs=1)
    assert type(bench.scheduler._policy).__name__ == "ShortestPromptFirst"


def test_the_policies_are_listed() -> None:
    assert {"fcfs", "priority", "fair", "deadline", "prefix"} <= set(installed_policies())


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"aging": 0}, "aging"),
        ({"aging": True}, "aging"),
        ({"tenant_weights": {"a": 0}}, "tenant_weights"),
        ({"tenant_weights": {"a": float("inf")}}, "tenant_weights"),
        ({"tenant_weights": {1: 1.0}}, "tenant_weights"),
        ({"tenant_weights": [("a", 1.0)]}, "tenant_weights"),
    ],
)
def test_bad_settings_of_policies_are_refused(fields: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidConfig) as caught:
        SchedulerConfig(max_model_len=100, **fields)
    assert caught.value.field == field


# Aging


@pytest.mark.parametrize("aging", [1, 3, 8])
@pytest.mark.parametrize("num_waiting", [0, 1, 5])
@pytest.mark.parametrize("slots", [1, 3])
def test_a_steady_stream_of_better_requests_delays_no_further_than_the_bound(
    aging: int, num_waiting: int, slots: int
) -> None:
    bench = Bench(num_blocks=500, max_num_seqs=slots, policy="priority", aging=aging)
    for index in range(slots):
        bench.add(f"first{index}", 3, max_tokens=2, priority=0)
    bench.loop.step()
    for index in range(num_waiting):
        bench.add(f"old{index}", 3, max_tokens=2, priority=9)
    bench.add("patient", 3, max_tokens=2, priority=9)
    overtook = 0
    for turn in range(2 * aging * (num_waiting + 3) + 20):
        for index in range(slots):
            bench.add(f"better{turn}.{index}", 3, max_tokens=2, priority=0)
        plan = bench.loop.launch()
        names = admitted(plan)
        bench.loop.land()
        if "patient" in names:
            break
        overtook += sum(name.startswith("better") for name in names)
    else:
        raise AssertionError("starved")
    assert overtook <= aging * (num_waiting + 2) + slots
    assert bench.scheduler.stats().preemptions == 0
    bench.run_and_check()


def test_without_aging_the_stream_starves_it() -> None:
    bench = Bench(num_blocks=500, max_num_seqs=1, policy="priority", aging=None, max_waiting_requests=10)
    bench.add("patient", 3, max_tokens=2, priority=9)
    for turn in range(50):
        bench.add(f"better{turn}", 3, max_tokens=1, priority=0)
        plan = bench.loop.launch()
        assert "patient" not in admitted(plan)
        bench.loop.land()


@pytest.mark.parametrize("policy", ["prefix", "test_scheduler_policies:ShortestPromptFirst"])
def test_other_policies_age_too(policy: str) -> None:
    bench = Bench(num_blocks=500, max_num_seqs=1, policy=policy, aging=4)
    shared = list(range(16))
    bench.add("warm", shared, max_tokens=1)
    bench.run_and_check()
    bench.add("busy", shared, max_tokens=3)
    bench.loop.step()
    bench.add("patient", 20, max_tokens=1)
    for turn in range(20):
        bench.add(f"better{turn}", [*shared[: 16 if policy == "prefix" else 1], turn], max_tokens=1)
        plan = bench.loop.launch()
        assert plan is not None
        bench.loop.land()
        if "patient" in admitted(plan):
            break
    assert 4 <= turn <= 4 * 2 + 3
    bench.run_and_check()


def test_a_request_that_aging_put_first_is_not_preempted_for_an_urgent_one() -> None:
    bench = Bench(max_num_seqs=1, policy="priority", aging=2)
    bench.add("first", 3, max_tokens=3, priority=0)
    bench.loop.step()
    bench.add("low", 3, max_tokens=30, priority=9)
    for index in range(5):
        bench.add(f"high{index}", 3, max_tokens=1, priority=0)
    while "low" not in admission_order(bench):
        bench.loop.step()
    assert len([name for name in admission_order(bench) if name.startswith("high")]) == 2
    bench.run_and_check()
    assert bench.scheduler.stats().preemptions == 0
    assert admission_order(bench).index("high4") > admission_order(bench).index("low")


def test_a_request_that_is_preempted_again_and_again_ages_over_its_stays() -> None:
    bench = Bench(num_blocks=200, max_num_seqs=1, policy="priority", aging=3, caching=False)
    bench.add("low", 20, max_tokens=10, priority=9)
    for turn in range(60):
        bench.loop.step()
        if bench.loop.results["low"].reason is not None:
            break
        if turn % 3 == 0:  # The queue runs empty in between, so "low" moves in and is preempted once more.
            bench.add(f"high{turn}", 3, max_tokens=1, priority=0)
    assert bench.loop.results["low"].reason == "length"
    assert bench.scheduler.stats().preemptions == 3
    bench.run_and_check()


# Prefix


def test_the_longest_cached_prefix_is_admitted_first() -> None:
    bench = Bench(max_num_seqs=1, policy="prefix")
    long, short = list(range(100, 124)), list(range(300, 308))
    for name, prompt in (("warm a", long), ("warm b", short)):
        bench.add(name, prompt, max_tokens=1)
        bench.run_and_check()
    bench.add("cold", 9, arrival_s=0.0)
    bench.add("short", [*short, 1], arrival_s=1.0)
    bench.add("long", [*long, 1], arrival_s=2.0)
    bench.add("unmatched", [*long, 2], arrival_s=3.0, match_prefix=False)
    bench.run_and_check()
    assert admission_order(bench)[2:] == ["long", "short", "cold", "unmatched"]


def test_a_prefix_that_is_cached_later_moves_a_request_up() -> None:
    bench = Bench(max_num_seqs=1, policy="prefix")
    prompt = list(range(40))
    bench.add("first", prompt, max_tokens=2)
    bench.loop.step()
    bench.add("other", 9, arrival_s=0.0)
    bench.add("second", [*prompt, 7], arrival_s=1.0)
    bench.run_and_check()
    assert admission_order(bench) == ["first", "second", "other"]


def num_shared_blocks(prompt: list[int], other: list[int]) -> int:
    """Full blocks of ``prompt`` that ``other`` begins with; the last token is never a hit."""
    shared = 0
    while shared < min(len(prompt) - 1, len(other)) and prompt[shared] == other[shared]:
        shared += 1
    return shared // BLOCK_SIZE


@pytest.mark.parametrize("seed", range(6))
def test_prefix_admits_like_a_plain_search_over_what_has_run(seed: int) -> None:
    rng = random.Random(seed)
    bench = Bench(num_blocks=500, max_num_seqs=1, policy="prefix", aging=None)
    stems = [[rng.randrange(50) for _ in range(24)] for _ in range(3)]
    for index in range(15):
        prompt = [*rng.choice(stems)[: rng.randint(1, 24)], rng.randrange(50)]
        bench.add(f"{index}", prompt, max_tokens=1, arrival_s=float(rng.randint(0, 3)))
    waiting = {name: request.token_ids.tolist() for name, request in bench.requests.items()}
    bench.run_and_check()
    have_run: list[list[int]] = []
    for name in admission_order(bench):

        def place(other: str) -> tuple[float, ...]:
            hits = [num_shared_blocks(waiting[other], prompt) for prompt in have_run]
            return (-max(hits, default=0), bench.requests[other].arrival_s, int(other))

        assert name == min(waiting, key=place)
        have_run.append(waiting.pop(name))
    assert not waiting


# Fair


def tokens_by_tenant(bench: Bench, until: int | None = None) -> Counter[str]:
    """Tokens that the plans scheduled, by tenant, from the plans alone."""
    used: Counter[str] = Counter()
    tenant_of: dict[int, str] = {}
    for plan in bench.loop.plans[:until]:
        tenant_of.update({new.slot: new.payload.tenant for new in plan.admitted})  # type: ignore[attr-defined]
        for slot, num_tokens in zip(plan.slots.tolist(), plan.num_tokens.tolist(), strict=True):
            used[tenant_of[slot]] += num_tokens
    return used


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("weights", [{}, {"a": 3.0}, {"a": 0.5, "b": 2.0}])
def test_backlogged_tenants_share_tokens_by_weight(weights: dict[str, float], depth: int) -> None:
    rng = random.Random(1)
    bench = Bench(
        num_blocks=200, depth=depth, max_num_seqs=4, policy="fair", tenant_weights=weights, caching=False
    )
    for index in range(150):
        # One tenant sends long requests, the other short ones: requests are not what is shared.
        bench.add(f"a{index}", rng.randint(1, 4), max_tokens=rng.randint(1, 4), tenant="a")
        bench.add(f"b{index}", rng.randint(10, 20), max_tokens=rng.randint(5, 20), tenant="b")
    most_of_one = 40
    while {"a", "b"} <= {state.request.tenant for state in bench.scheduler._waiting}:
        bench.loop.step()
        used = tokens_by_tenant(bench)
        shares = [used[tenant] / weights.get(tenant, 1.0) for tenant in "ab"]
        least = min(weights.get(tenant, 1.0) for tenant in "ab")
        assert abs(shares[0] - shares[1]) <= 4 * most_of_one / least + 1
    assert used["a"] > 100
    bench.run_and_check()


def test_fair_picks_the_tenant_with_the_least_use_like_a_plain_count() -> None:
    rng = random.Random(2)
    weights = {"a": 2.0}
    bench = Bench(
        num_blocks=200, max_num_seqs=1, policy="fair", tenant_weights=weights, caching=False, aging=1
    )
    for index in range(60):
        bench.add(
            f"{index}",
            rng.randint(1, 20),
            max_tokens=rng.randint(1, 9),
            tenant=rng.choice("abc"),
            arrival_s=float(index),
        )
    waiting = dict(bench.requests)
    bench.run_and_check()
    for index, plan in enumerate(bench.loop.plans):
        for name in admitted(plan):
            used = tokens_by_tenant(bench, until=index)
            of_tenants = {request.tenant for request in waiting.values()}
            least = min(used[tenant] / weights.get(tenant, 1.0) for tenant in of_tenants)
            best = [
                request
                for request in waiting.values()
                if used[request.tenant] / weights.get(request.tenant, 1.0) == least
            ]
            assert name == min(best, key=lambda request: request.arrival_s).request_id
            del waiting[name]
    assert not waiting


def test_a_tenant_that_was_idle_cannot_claim_its_past() -> None:
    bench = Bench(num_blocks=200, max_num_seqs=1, policy="fair", caching=False)
    for index in range(40):
        bench.add(f"busy{index}", 5, max_tokens=5, tenant="busy")
    for _ in range(100):
        bench.loop.step()
    start = len(bench.loop.plans)
    for index in range(20):
        bench.add(f"idle{index}", 5, max_tokens=5, tenant="idle")
    for _ in range(100):
        bench.loop.step()
    order = [name[:4] for plan in bench.loop.plans[start:] for name in admitted(plan)]
    assert 0.4 <= order.count("idle") / len(order) <= 0.6
    assert "idleidleidle" not in "".join(order)
    bench.run_and_check()


def test_idle_accounts_do_not_pile_up() -> None:
    policy = FairShare()
    bench = Bench(max_num_seqs=1, parts={"policy": policy})
    for index in range(3000):
        bench.add(f"{index}", 2, max_tokens=1, tenant=f"tenant {index}")
        bench.loop.run()
    assert len(policy._accounts) <= 1025
    assert len(bench.scheduler._meter._lanes) == 1


def test_unknown_objects_are_no_policy() -> None:
    bench = Bench()
    with pytest.raises(InvalidConfig) as caught:
        TokenBudgetScheduler(bench.config, bench.cache, policy="fcfs")  # type: ignore[arg-type]
    assert caught.value.field == "policy"
