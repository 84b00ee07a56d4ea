"""Block quotas of tenants: who is short by its quota waits or makes room itself, and nobody else notices."""

from __future__ import annotations

import pytest
from scheduler_bench import Bench, admitted


def preempted(bench: Bench) -> set[str]:
    """Return the requests that were admitted more than once."""
    names = [name for plan in bench.loop.plans for name in admitted(plan)]
    return {name for name in names if names.count(name) > 1}


@pytest.mark.parametrize("depth", [1, 2])
def test_a_tenant_at_its_quota_lets_its_own_last_request_give_way(depth: int) -> None:
    bench = Bench(num_blocks=10, depth=depth, caching=False)
    bench.cache.set_quota("small", 4)
    bench.add("own", 8, max_tokens=8, tenant="small")
    bench.add("last", 8, max_tokens=8, tenant="small")
    # The pool is full as well when the quota is, and this one is the last of all.
    bench.add("other", 21, max_tokens=4, tenant="big")
    bench.run_and_check()
    assert preempted(bench) == {"last"}


def test_a_tenant_at_its_quota_does_not_hold_up_the_queue() -> None:
    bench = Bench(num_blocks=16)
    bench.cache.set_quota("small", 3)
    bench.add("runs", 8, max_tokens=4, tenant="small")
    bench.add("waits", 8, max_tokens=4, tenant="small")
    bench.add("behind", 3, max_tokens=4, tenant="small")
    bench.add("passes", 8, max_tokens=4, tenant="big")
    bench.loop.step()
    assert admitted(bench.loop.plans[0]) == ["runs", "passes"]
    bench.run_and_check()
    order = [name for plan in bench.loop.plans for name in admitted(plan)]
    assert list(dict.fromkeys(order)) == ["runs", "passes", "waits", "behind"]


@pytest.mark.parametrize(("prompt", "num_outputs"), [(20, 0), (6, 3)])
def test_a_request_above_its_quota_ends_when_nobody_holds_a_block(prompt: int, num_outputs: int) -> None:
    bench = Bench(num_blocks=16)
    bench.cache.set_quota("small", 2)
    bench.add("large", prompt, max_tokens=30, tenant="small")
    bench.add("next", 5, max_tokens=3, tenant="small")
    bench.add("other", 8, max_tokens=12, tenant="big")
    bench.run_and_check(but=("large",))
    result = bench.loop.results["large"]
    assert (result.reason, len(result.tokens)) == ("error", num_outputs)


def test_a_quota_that_is_raised_lets_the_tenant_in() -> None:
    bench = Bench(num_blocks=16)
    bench.cache.set_quota("small", 2)
    bench.add("large", 20, max_tokens=4, tenant="small")
    bench.add("other", 8, max_tokens=12, tenant="big")
    for _ in range(3):
        bench.loop.step()
    assert bench.scheduler.stats().waiting == 1
    bench.cache.set_quota("small", 6)
    bench.run_and_check()


@pytest.mark.parametrize("max_num_seqs", [3, 8])
def test_an_urgent_request_at_its_quota_preempts_its_own_tenant_only(max_num_seqs: int) -> None:
    bench = Bench(num_blocks=16, policy="priority", max_num_seqs=max_num_seqs)
    bench.cache.set_quota("small", 4)
    bench.add("own", 8, max_tokens=7, tenant="small", priority=1)
    bench.add("other", 8, max_tokens=12, tenant="big", priority=2)
    bench.add("last", 8, max_tokens=12, tenant="big", priority=2)
    bench.loop.step()
    bench.add("urgent", 12, max_tokens=4, tenant="small", priority=0)
    bench.loop.step()
    assert admitted(bench.loop.plans[-1]) == ["urgent"]
    bench.run_and_check()
    assert preempted(bench) == {"own"}


def test_an_urgent_request_above_its_quota_preempts_nobody() -> None:
    bench = Bench(num_blocks=8, policy="priority")
    bench.cache.set_quota("small", 4)
    bench.add("first", 7, max_tokens=8, tenant="small")
    bench.add("other", 8, max_tokens=6, tenant="big", priority=2)
    bench.add("last", 7, max_tokens=1, tenant="big", priority=2)
    bench.loop.step()
    bench.add("urgent", 12, max_tokens=4, tenant="small", priority=0)
    bench.run_and_check()
    assert preempted(bench) == set()
    assert bench.scheduler.stats().preemptions == 0
