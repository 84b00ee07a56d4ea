"""Tells a policy how many tokens each lane was scheduled; knows nothing of what the policy does with them."""

from __future__ import annotations

from collections.abc import Hashable

import numpy as np

from llm_scheduler.plan import Int32, Int64
from llm_scheduler.policy import Policy
from llm_scheduler.request import RequestState
from llm_scheduler.slots import SlotTable


class Meter:
    """Settles the tokens of running rows when somebody needs to know, in a few array operations for all rows.

    What a row was scheduled is how far ``SlotTable.computed`` has moved, so steps cost nothing.

    Args:
        policy: Charged through ``Policy.charge``; a policy that does not override it costs nothing at all.
        table: The slots.
    """

    def __init__(self, policy: Policy, table: SlotTable) -> None:
        self._policy = policy
        self._table = table
        self._is_on = type(policy).charge is not Policy.charge
        self._settled: Int32 = np.zeros(table.num_slots, np.int32)
        self._index: Int64 = np.full(table.num_slots, -1, np.int64)
        self._lanes: list[Hashable] = []
        self._num_rows: list[int] = []
        self._index_of: dict[Hashable, int] = {}
        self._free: list[int] = []

    def enter(self, state: RequestState) -> None:
        """Start to count for a request that took a slot."""
        if not self._is_on:
            return
        index = self._index_of.get(state.lane)
        if index is None:
            index = self._new_index(state.lane)
        self._num_rows[index] += 1
        self._index[state.slot] = index
        self._settled[state.slot] = self._table.computed[state.slot]

    def enter_at(self, state: RequestState) -> None:
        """Start to count from where a request stands now: what was brought from elsewhere is free."""
        if self._is_on:
            self._settled[state.slot] = self._table.computed[state.slot]

    def leave(self, state: RequestState) -> None:
        """Settle a request that is about to lose its slot."""
        if not self._is_on:
            return
        slot = state.slot
        index = int(self._index[slot])
        self._index[slot] = -1
        num_tokens = int(self._table.computed[slot] - self._settled[slot])
        if num_tokens:
            self._policy.charge(state.lane, num_tokens)
        self._num_rows[index] -= 1
        if not self._num_rows[index]:
            del self._index_of[state.lane]
            self._free.append(index)

    def charge_ahead(self, state: RequestState, num_tokens: int) -> None:
        """Charge tokens of the plan that is being made, so that the next pick knows of them."""
        if self._is_on:
            self._policy.charge(state.lane, num_tokens)
            self._settled[state.slot] += num_tokens

    def settle(self) -> None:
        """Charge all that was scheduled since the last time."""
        if not self._is_on:
            return
        slots = np.flatnonzero(self._index >= 0)
        computed = self._table.computed[slots]
        tokens = computed - self._settled[slots]
        if not tokens.any():
            return
        self._settled[slots] = computed
        by_lane = np.bincount(self._index[slots], weights=tokens, minlength=len(self._lanes))
        for index in np.flatnonzero(by_lane).tolist():
            self._policy.charge(self._lanes[index], int(by_lane[index]))

    def _new_index(self, lane: Hashable) -> int:
        if self._free:
            index = self._free.pop()
            self._lanes[index] = lane
        else:
            index = len(self._lanes)
            self._lanes.append(lane)
            self._num_rows.append(0)
        self._index_of[lane] = index
        return index
