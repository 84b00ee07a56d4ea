"""Room for the tokens that running rows are to compute, if need be taken from others; knows no budgets."""

from __future__ import annotations

import numpy as np
from llm_kvcache import Growth, KVCache

from llm_scheduler.plan import Int32, Int64, Ragged
from llm_scheduler.request import RequestState
from llm_scheduler.residency import Residency
from llm_scheduler.rows import PlannedRows
from llm_scheduler.slots import SlotTable


class Grower:
    """Gives blocks to running rows.

    Args:
        cache: The KV cache.
        table: The slots.
        residency: Names the last running request and preempts it.
    """

    def __init__(self, cache: KVCache, table: SlotTable, residency: Residency) -> None:
        self._cache = cache
        self._table = table
        self._residency = residency
        self._is_pool_short = False

    def grow(self, slots: Int64, num_tokens: Int64) -> tuple[PlannedRows, bool]:
        """Make room for running rows, preempting from the end of the order where blocks are short.

        Args:
            slots: int64[R], rows in policy order.
            num_tokens: int64[R], tokens each row is to compute.

        Returns:
            The rows that have room, in the same order, and whether the pool was short of blocks. A tenant
            short by its quota takes blocks from its own requests only.
        """
        table = self._table
        needs = np.maximum(table.computed[slots] + num_tokens - table.reserved[slots], 0).astype(np.int32)
        growth = self._cache.grow_many(table.seq[slots], needs)
        table.reserved[slots] += np.where(growth.ok, needs, 0)
        groups = range(len(self._cache.groups))
        rows = PlannedRows(slots, num_tokens, tuple(Ragged(*growth.group(group)) for group in groups))
        if growth.ok.all():
            return rows, False
        self._is_pool_short = False
        return self._grow_or_preempt(rows, needs, growth), self._is_pool_short

    def _grow_or_preempt(self, rows: PlannedRows, needs: Int32, growth: Growth) -> PlannedRows:
        states = self._table.states_at(rows.slots)
        blocks = [[ragged.row(row) for row in range(len(rows))] for ragged in rows.blocks]
        stalled: set[int] = set()
        self._drop_drafts(rows, needs, np.flatnonzero(~growth.ok))
        for row in np.flatnonzero(~growth.ok).tolist():
            gained = self._make_room(states[row], int(needs[row])) if states[row].slot >= 0 else None
            if gained is None:
                stalled.add(row)
            else:
                for group, of_group in enumerate(gained):
                    blocks[group][row] = of_group
        kept = [row for row, state in enumerate(states) if state.slot >= 0 and row not in stalled]
        kept_blocks = tuple(Ragged.from_rows([of_group[row] for row in kept]) for of_group in blocks)
        return PlannedRows(rows.slots[kept], rows.num_tokens[kept], kept_blocks)

    def _drop_drafts(self, rows: PlannedRows, needs: Int32, short: Int64) -> None:
        """Let rows that are short of blocks do without drafts: nobody is preempted for a guess."""
        table, slots = self._table, rows.slots[short]
        known = table.known[slots] + table.in_flight[slots]
        rows.num_tokens[short] = np.minimum(rows.num_tokens[short], known - table.computed[slots])
        end = table.computed[slots] + rows.num_tokens[short]
        needs[short] = np.maximum(end - table.reserved[slots], 0)

    def _make_room(self, state: RequestState, num_tokens: int) -> list[Int32] | None:
        """Grow one row, taking blocks from the last running requests.

        Returns:
            Its new blocks by group. None where it was preempted itself, or sits out this step because a
            request that ended still holds blocks, which come back when its last plan was updated.
        """
        groups = range(len(self._cache.groups))
        num_blocks = [len(self._cache.block_table(state.seq, group)) for group in groups]
        while not self._cache.grow(state.seq, num_tokens):
            victim = self._victim_for(state, num_tokens)
            if victim is None:
                return None
            self._residency.preempt(victim)
            if victim is state:
                return None
        self._table.reserved[state.slot] += num_tokens
        return [self._cache.block_table(state.seq, group)[num_blocks[group] :] for group in groups]

    def _victim_for(self, state: RequestState, num_tokens: int) -> RequestState | None:
        """Return who gives way to a running row: its tenant's last where the quota is what is short."""
        quotas, reserved = self._residency.quotas, int(self._table.reserved[state.slot])
        if quotas.is_short(state, reserved, reserved + num_tokens):
            tenant = state.request.tenant
            return None if quotas.has_ended(tenant) else quotas.last_of(tenant)
        self._is_pool_short = True
        return None if self._table.num_ended else self._residency.running.last()
