"""Which deadlines can be met, at the door and in the queue; knows nothing of how the queue is ordered.

A request is expected to take the service time of its prompt and of ``max(1, min_tokens)`` outputs: how many
more it will yield nobody knows, and a deadline must not be called unmeetable for outputs that may never come.
At the door the prompts that wait before it are added, because they are computed before its own.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable

from llm_scheduler.errors import DeadlineUnmet
from llm_scheduler.request import Request, RequestState
from llm_scheduler.service_time import ServiceTime


class Deadlines:
    """Refuses deadlines that cannot be met and names waiting requests whose deadline went out of reach.

    Args:
        service: Estimates service times.
        clock: Seconds, the clock of ``Request.deadline_s``.
    """

    _LEAST_PRUNED = 64

    def __init__(self, service: ServiceTime, clock: Callable[[], float]) -> None:
        self._service = service
        self._clock = clock
        self._by_latest_start: list[tuple[float, int, RequestState]] = []
        self._num_watched = 0
        self._prune_at = self._LEAST_PRUNED

    def require_meetable(self, request: Request, num_tokens_before: int) -> None:
        """Refuse a request that would be late.

        Args:
            request: A request with a deadline.
            num_tokens_before: Prompt tokens of the requests that wait before it.

        Raises:
            DeadlineUnmet: It would end after its deadline.
        """
        assert request.deadline_s is not None, "the request has no deadline"
        wait_s = self._service.seconds(num_tokens_before, 0)
        service_s = self._service.seconds(len(request.token_ids), max(1, request.min_tokens))
        end_s = self._clock() + wait_s + service_s
        if end_s > request.deadline_s:
            raise DeadlineUnmet(request.request_id, end_s - request.deadline_s)

    def watch(self, state: RequestState) -> None:
        """Watch a request from now on while it waits; passes over one without a deadline."""
        if state.request.deadline_s is None:
            return
        if len(self._by_latest_start) >= self._prune_at:
            self._prune()
        self._num_watched += 1
        entry = (self._latest_start_s(state), self._num_watched, state)
        heapq.heappush(self._by_latest_start, entry)

    def expired(self) -> list[RequestState]:
        """Return the waiting requests that can no longer be in time, and stop watching them."""
        heap = self._by_latest_start
        if not heap:
            return []
        now_s = self._clock()
        expired: dict[RequestState, None] = {}  # A request preempted twice may be watched twice.
        while heap and heap[0][0] < now_s:
            state = heapq.heappop(heap)[2]
            if not _waits(state):
                continue
            # The estimate may have become better since it was watched.
            if self._latest_start_s(state) < now_s:
                expired[state] = None
            else:
                self.watch(state)
        return list(expired)

    def _latest_start_s(self, state: RequestState) -> float:
        deadline_s = state.request.deadline_s
        assert deadline_s is not None, "the request has no deadline"
        num_outputs = max(1, state.request.min_tokens - len(state.outputs))
        return deadline_s - self._service.seconds(state.num_known_tokens, num_outputs)

    def _prune(self) -> None:
        """Drop the entries of requests that run or ended; a preempted one is watched anew."""
        self._by_latest_start = [entry for entry in self._by_latest_start if _waits(entry[2])]
        heapq.heapify(self._by_latest_start)
        self._prune_at = max(self._LEAST_PRUNED, 2 * len(self._by_latest_start))


def _waits(state: RequestState) -> bool:
    return not state.finished and state.slot < 0
