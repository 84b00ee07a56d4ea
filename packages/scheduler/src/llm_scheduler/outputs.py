"""The output tokens of running requests, noted for all rows at once; knows nothing of when a request ends."""

from __future__ import annotations

import numpy as np

from llm_scheduler.plan import Int32, Int64
from llm_scheduler.request import RequestState


class OutputLog:
    """Keeps the last few outputs of each slot in one array and moves them to the requests now and then.

    A request in a slot has all its outputs in ``RequestState.outputs`` only after ``flush``.

    Args:
        num_slots: Slots.
    """

    _WIDTH = 64

    def __init__(self, num_slots: int) -> None:
        self._tokens: Int32 = np.zeros((num_slots, self._WIDTH), np.int32)
        self._count: Int64 = np.zeros(num_slots, np.int64)

    def append(self, slots: Int64, tokens: Int32, states: list[RequestState | None]) -> None:
        """Note one token of each row.

        Args:
            slots: int64[R], no slot twice.
            tokens: int32[R].
            states: The occupants by slot.
        """
        count = self._count[slots]
        self._tokens[slots, count] = tokens
        count += 1
        self._count[slots] = count
        if len(count) and count.max() == self._WIDTH:
            for slot in slots[count == self._WIDTH].tolist():
                state = states[slot]
                assert state is not None, "the slot is free"
                self._move(slot, state)

    def flush(self, state: RequestState) -> None:
        """Move what is noted for a request in a slot to the request."""
        if self._count[state.slot]:
            self._move(state.slot, state)

    def drop(self, slots: list[int]) -> None:
        """Forget what is noted for the slots."""
        self._count[slots] = 0

    def _move(self, slot: int, state: RequestState) -> None:
        state.outputs.frombytes(self._tokens[slot, : self._count[slot]].tobytes())
        self._count[slot] = 0
