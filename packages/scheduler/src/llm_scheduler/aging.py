"""Which waiting request has been passed over for too long; knows nothing of policies, slots or blocks.

Time is counted in departures from the queue, so that it needs no clock and a replay ages the same. The
``n``-th request that enters would be the ``n``-th to depart if nobody overtook, so the departures beyond that
number are requests that overtook it. A request that returns after a preemption keeps what it suffered,
and the preemption counts as one more.
"""

from __future__ import annotations

from collections.abc import Callable

from llm_scheduler.ordering import OrderedRequests
from llm_scheduler.request import Request, RequestState


class Aging:
    """Names the request to be put first, by how many later ones overtook it.

    A request that ``every`` later ones have overtaken is named, the longest passed over first, and no more
    than one in ``every`` departures. So with ``n`` requests waiting when it came, and nothing but the order
    in its way, a request is named before ``every * (n + 2)`` later ones have overtaken it; the other
    departures follow the policy.

    Args:
        every: At least 1, or None to name nobody.
    """

    def __init__(self, every: int | None) -> None:
        self._every = every
        self._by_age = OrderedRequests("age")
        self._num_entered = 0
        self._num_departed = 0
        self._next_at = 0
        self._num_named = 0

    def enter(self, state: RequestState) -> None:
        """Take note of a request that may now be admitted."""
        if self._every is None:
            return
        state.age = (self._num_entered - state.num_overtaken, self._num_entered)
        self._num_entered += 1
        self._by_age.add(state)

    def depart(self, state: RequestState) -> None:
        """Take note that an entered request left the queue, whatever for."""
        if self._every is None:
            return
        self._by_age.remove(state)
        state.num_overtaken = max(0, int(self._num_departed - state.age[0]))
        self._num_departed += 1

    def due(self, admits: Callable[[Request], bool] | None) -> RequestState | None:
        """Name the request to be put first, if one is due; it counts as named.

        Args:
            admits: Whether a request may be admitted now; None where all may.
        """
        if self._every is None or self._num_departed < self._next_at:
            return None
        for state in self._by_age:
            if self._num_departed - state.age[0] < self._every:
                return None
            if not state.promotion and (admits is None or admits(state.request)):
                self._num_named += 1
                state.promotion = self._num_named
                self._next_at = self._num_departed + self._every
                return state
        return None
