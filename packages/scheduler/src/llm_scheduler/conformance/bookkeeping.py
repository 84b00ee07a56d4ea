"""Checks a scheduler's counters and the use of blocks against what happened; makes no calls of its own."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from llm_kvcache import KVCache, KVCacheError

from llm_scheduler.conformance.ledger import Entry, Ledger
from llm_scheduler.conformance.rules import Rule, RuleBroken, require
from llm_scheduler.conformance.worlds import World
from llm_scheduler.stats import SchedulerStats


def check_cache(cache: KVCache, world: World, holders: Collection[Entry]) -> None:
    """Check the cache's invariants, and that no more blocks are in use than its users may hold.

    Args:
        cache: The cache.
        world: Its geometry.
        holders: Requests that are live or in a plan in flight.
    """
    try:
        cache.check()
    except KVCacheError as error:
        raise RuleBroken(Rule.CACHE_CHECK, str(error)) from error
    most = sum(world.num_blocks_at_most(entry.request) for entry in holders)
    used = cache.stats().used
    message = f"{used} blocks are in use, the {len(holders)} requests live or in flight need {most} at most"
    require(used <= most, Rule.BLOCKS_COME_BACK, message)


def check_stats(stats: SchedulerStats, ledger: Ledger, expected: Mapping[str, int]) -> None:
    """Check the counters that follow from the ledger, and those whose values are given by name."""
    pairs = {name: (getattr(stats, name), value) for name, value in expected.items()}
    for reason in ("stop", "length", "abort", "error"):
        pairs[f"finished_{reason}"] = (getattr(stats, f"finished_{reason}"), ledger.ended[reason])
    pairs["running + waiting"] = (stats.running + stats.waiting, len(ledger.live()))
    wrong = [
        f"{name} is {found}, expected {value}" for name, (found, value) in pairs.items() if found != value
    ]
    require(not wrong, Rule.STATS, "; ".join(wrong))
