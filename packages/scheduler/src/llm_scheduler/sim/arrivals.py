"""Which request arrives next; knows nothing of what happens to it."""

from __future__ import annotations

import heapq
import math

import numpy as np

from llm_scheduler.sim.workload import Workload


class Arrivals:
    """Requests by time: those with a time of their own, and those that earlier requests start.

    Equal times come in the order of the workload; among started requests, in the order of ``start``.
    """

    def __init__(self, workload: Workload) -> None:
        free = np.flatnonzero(workload.after < 0)
        free = free[np.argsort(workload.arrival_s[free], kind="stable")]
        self._indices: list[int] = free.tolist()
        self._times: list[float] = workload.arrival_s[free].tolist()
        self._times.append(math.inf)
        self._next = 0
        self._started: list[tuple[float, int, int]] = []
        self._num_started = 0

    @property
    def next_s(self) -> float:
        """When the next request arrives; infinite when none is known."""
        time_s = self._times[self._next]
        return min(time_s, self._started[0][0]) if self._started else time_s

    def start(self, index: int, time_s: float) -> None:
        """Let a request arrive at that time."""
        heapq.heappush(self._started, (time_s, self._num_started, index))
        self._num_started += 1

    def pop(self) -> int:
        """Return the next request; there must be one."""
        if self._started and self._started[0][0] < self._times[self._next]:
            return heapq.heappop(self._started)[2]
        self._next += 1
        return self._indices[self._next - 1]
