"""Draft tokens between the worker that proposes them and the plan that checks them; knows nothing of how."""

from __future__ import annotations

import numpy as np

from llm_scheduler.caps import Caps
from llm_scheduler.plan import Bool, Int32, Int64, Ragged
from llm_scheduler.slots import SlotTable


class Drafts:
    """The proposals for each slot, and which rows wait for the next ones.

    How many tokens a row with drafts yields is known only when its plan was updated. So such a row is planned
    only while no plan of it is in flight, and a row whose last result brought proposals waits for the next
    ones.

    Args:
        most: Most draft tokens of a row; 0 passes over all proposals.
        table: The slots.
        caps: May lower ``most`` for a batch.
    """

    def __init__(self, most: int, table: SlotTable, caps: Caps) -> None:
        self._most = most
        self._table = table
        self._caps = caps
        self._tokens: Int32 = np.zeros((table.num_slots, most), np.int32)
        self._num_proposed: Int32 = np.zeros(table.num_slots, np.int32)
        self._expected: Bool = np.zeros(table.num_slots, np.bool_)
        self._generation: Int64 = np.full(table.num_slots, -1, np.int64)
        self._is_idle = True

    def extend(self, slots: Int64, wanted: Int64, budget: int, most_per_row: int) -> Int64 | None:
        """Let rows want their drafts too, and hold back those whose tokens are not known yet.

        Args:
            slots: int64[R], the running rows.
            wanted: int64[R], tokens each row could compute; changed in place.
            budget: Tokens of the step; where it does not suffice for all, nobody gets drafts.
            most_per_row: Cap of a row.

        Returns:
            int64[R], how many of ``wanted`` are drafts, or None for none at all.
        """
        if self._is_idle:
            return None
        table = self._table
        in_flight = table.plans[slots] > 0
        expected = self._expected[slots] & (self._generation[slots] == table.generation[slots])
        self._is_idle = not expected.any()
        wanted[in_flight & expected] = 0
        room = table.limit[slots] - table.known[slots] - 1
        most = min(self._caps.most_drafts(len(slots), self._most), most_per_row - 1)
        num_drafts: Int64 = np.minimum(np.minimum(self._num_proposed[slots], room), most).astype(np.int64)
        num_drafts[in_flight | ~expected | (wanted != 1) | (num_drafts < 0)] = 0
        if not num_drafts.any() or wanted[wanted == 1].sum() + num_drafts.sum() > budget:
            return None
        wanted += num_drafts
        return num_drafts

    def launch(self, slots: Int64, num_drafts: Int64) -> Ragged:
        """Take note that a plan checks the first proposals of each row, and return them."""
        self._num_proposed[slots] = 0
        is_taken = np.arange(self._most) < num_drafts[:, None]
        offsets = np.zeros(len(slots) + 1, np.int32)
        np.cumsum(num_drafts, out=offsets[1:])
        return Ragged(self._tokens[slots][is_taken], offsets)

    def propose(self, slots: Int64, drafts: Ragged | None, rows: Int64) -> None:
        """Take in what a result proposes, be it nothing.

        Proposals for a row that a later plan holds are out of date; that it has some is remembered.

        Args:
            slots: int64[n], slots of rows that go on.
            drafts: Proposals by row of the plan.
            rows: int64[n], the rows of the plan that the slots belong to.
        """
        if drafts is None:
            self._expected[slots] = False
            return
        lengths = np.minimum(np.diff(drafts.offsets)[rows], self._most)
        self._expected[slots] = lengths > 0
        self._generation[slots] = self._table.generation[slots]
        self._is_idle = self._is_idle and not lengths.any()
        lengths = np.where(self._table.plans[slots] > 0, 0, lengths)
        self._num_proposed[slots] = lengths
        column = np.arange(self._most)
        is_there = column < lengths[:, None]
        source = drafts.offsets[:-1][rows][:, None] + column
        tokens = self._tokens[slots]
        tokens[is_there] = drafts.values[source[is_there]]
        self._tokens[slots] = tokens

    @property
    def is_on(self) -> bool:
        """Whether proposals are taken."""
        return self._most > 0
