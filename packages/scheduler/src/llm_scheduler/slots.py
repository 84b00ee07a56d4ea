"""Running requests as arrays indexed by slot; knows nothing of policies, budgets or the cache."""

from __future__ import annotations

import heapq

import numpy as np
from numpy.typing import NDArray

from llm_scheduler.outputs import OutputLog
from llm_scheduler.plan import Bool, Int32, Int64
from llm_scheduler.request import RequestState
from llm_scheduler.stopping import StopFilter

LIVE = 0
ENDED = 1
"""The request ended while a plan holds the slot; its KV is sound."""
FAILED = 2
"""As ENDED, and what was computed for it must not be cached."""


class SlotTable:
    """The numbers of every running request, so that a step handles all rows with a few array operations.

    Attributes (each but ``outputs`` and ``stops`` of length ``num_slots``):
        outputs: The outputs that are not yet in ``RequestState.outputs``.
        stops: The stop tokens of all occupants.
        states: The occupants, or None.
        seq: int64, sequence id in the cache.
        known: int32, known tokens.
        in_flight: int32, sampled tokens of unfinished plans: they count as known for planning.
        computed: int32, tokens whose KV is written once the plans made so far have run.
        reserved: int32, tokens the cache granted room for.
        limit: int32, tokens at which the request ends.
        prompt: int32, tokens of the prompt.
        plans: int32, plans in flight that hold the slot.
        ended: int8, ``LIVE``, ``ENDED`` or ``FAILED``.
        is_told: bool, a plan has named the occupant as admitted.
        cached: int32, ``RequestState.num_cached_tokens`` while it runs.
        generation: int64, counts occupants; a plan's copy is equal while its row is still the occupant.
    """

    def __init__(self, num_slots: int) -> None:
        self.seq: Int64 = np.full(num_slots, -1, np.int64)
        self.known: Int32 = np.zeros(num_slots, np.int32)
        self.in_flight: Int32 = np.zeros(num_slots, np.int32)
        self.computed: Int32 = np.zeros(num_slots, np.int32)
        self.reserved: Int32 = np.zeros(num_slots, np.int32)
        self.limit: Int32 = np.zeros(num_slots, np.int32)
        self.prompt: Int32 = np.zeros(num_slots, np.int32)
        self.plans: Int32 = np.zeros(num_slots, np.int32)
        self.ended: NDArray[np.int8] = np.zeros(num_slots, np.int8)
        self.is_told: Bool = np.zeros(num_slots, np.bool_)
        self.generation: Int64 = np.zeros(num_slots, np.int64)
        self.cached: Int32 = np.zeros(num_slots, np.int32)
        self.outputs = OutputLog(num_slots)
        self.stops = StopFilter()
        self.states: list[RequestState | None] = [None] * num_slots
        self._free = list(range(num_slots))
        self._released: list[int] = []
        self._num_ended = 0

    @property
    def num_free(self) -> int:
        """Slots without an occupant."""
        return len(self._free)

    @property
    def num_slots(self) -> int:
        """All slots."""
        return len(self.states)

    @property
    def num_ended(self) -> int:
        """Slots of ended requests that a plan in flight still holds."""
        return self._num_ended

    def take(self, state: RequestState, num_computed: int) -> None:
        """Give the lowest free slot to a request whose known tokens are all reserved."""
        slot = heapq.heappop(self._free)
        self.states[slot] = state
        state.slot = slot
        self.seq[slot] = state.seq
        self.known[slot] = self.reserved[slot] = state.num_known_tokens
        self.computed[slot] = num_computed
        self.stops.add(state.stop_token_ids)
        self.prompt[slot] = state.num_prompt_tokens
        self.limit[slot] = state.num_prompt_tokens + state.max_outputs

    def mark_ended(self, slot: int, how: int) -> None:
        """Note that the occupant ended; the slot is still held."""
        self.ended[slot] = how
        self._num_ended += 1

    def give_back(self, slots: list[int]) -> None:
        """Free slots; the next plan names those whose occupant some plan had named."""
        self._released.extend(slot for slot in slots if self.is_told[slot])
        for slot in slots:
            state = self.states[slot]
            assert state is not None, "the slot is free already"
            self.stops.remove(state.stop_token_ids)
            state.slot = -1
            self.states[slot] = None
            self._num_ended -= int(self.ended[slot] != LIVE)
            heapq.heappush(self._free, slot)
        self.generation[slots] += 1
        self.in_flight[slots] = 0
        self.plans[slots] = 0
        self.ended[slots] = LIVE
        self.is_told[slots] = False
        self.outputs.drop(slots)

    def drain_released(self) -> Int32:
        """Return int32[], the slots given back since the last call."""
        released = np.array(self._released, np.int32)
        self._released.clear()
        return released

    def occupants(self) -> list[RequestState]:
        """Return all occupants, those that ended and still hold their slot included."""
        return [state for state in self.states if state is not None]

    def states_at(self, slots: Int64) -> list[RequestState]:
        """Return the occupants of taken slots."""
        states = self.states
        return [states[slot] for slot in slots.tolist()]

    def tokens_wanted(self, slots: Int64) -> Int64:
        """Return int64[R]: tokens each row could compute now; 0 where its last token is in flight."""
        known = self.known[slots] + self.in_flight[slots]
        return np.where(known < self.limit[slots], known - self.computed[slots], 0).astype(np.int64)

    def still_occupied(self, slots: Int64, generations: Int64) -> Bool:
        """Return bool[R]: rows that still have the slot they were planned in."""
        occupied: Bool = self.generation[slots] == generations
        return occupied
