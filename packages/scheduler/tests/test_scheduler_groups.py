"""Caches with several KV groups: every group's blocks reach the worker."""

from __future__ import annotations

import numpy as np
import pytest
from llm_kvcache import FullAttention, KVCache, SlidingWindow
from llm_scheduler import Ragged, Request, SchedulerConfig, StepPlan, StepResult, TokenBudgetScheduler

GROUPS = {
    "two sizes": [FullAttention(4), FullAttention(8)],
    "window": [FullAttention(4), SlidingWindow(block_size=4, window=8)],
}


def apply(plan: StepPlan, tables: dict[int, list[list[int]]]) -> None:
    """Keep block tables as a worker does: by slot, per group."""
    for slot in plan.released.tolist():
        del tables[slot]
    for new in plan.admitted:
        assert new.slot not in tables
        tables[new.slot] = [[] for _ in plan.new_blocks]
    for row, slot in enumerate(plan.slots.tolist()):
        for table, blocks in zip(tables[slot], plan.new_blocks, strict=True):
            table += blocks.row(row).tolist()


@pytest.mark.parametrize("groups", list(GROUPS))
@pytest.mark.parametrize("num_blocks", [40, 200])
def test_block_tables_of_all_groups_are_told(groups: str, num_blocks: int) -> None:
    cache = KVCache(GROUPS[groups], num_blocks)
    config = SchedulerConfig(max_model_len=60, max_num_seqs=4, max_num_batched_tokens=32)
    scheduler = TokenBudgetScheduler(config, cache)
    for index in range(10):
        prompt = np.arange(5 + 3 * index % 20, dtype=np.int32) + index % 2
        scheduler.add(Request(request_id=f"{index}", token_ids=prompt, max_tokens=20))
    tables: dict[int, list[list[int]]] = {}
    while scheduler.has_work():
        plan = scheduler.schedule()
        assert plan is not None
        assert len(plan.new_blocks) == 2
        apply(plan, tables)
        for slot, num_computed, num_tokens in zip(
            plan.slots.tolist(), plan.num_computed.tolist(), plan.num_tokens.tolist(), strict=True
        ):
            seq = int(scheduler._table.seq[slot])
            for group, table in enumerate(tables[slot]):
                told = cache.block_table(seq, group).tolist()
                end = -(-(num_computed + num_tokens) // GROUPS[groups][group].block_size)
                assert len(table) >= end
                # A window gives back blocks that no token sees any more; the worker does not read them.
                assert all(mine == theirs for mine, theirs in zip(table, told, strict=True) if theirs >= 0)
        tokens = [[7] if samples else [] for samples in plan.samples.tolist()]
        scheduler.update(plan, StepResult(plan.step_id, Ragged.from_rows(tokens)))
        cache.check()
    stats = scheduler.stats()
    assert stats.finished_length == 10
    assert stats.used_blocks == 0
    assert (stats.preemptions > 0) == (num_blocks == 40)
