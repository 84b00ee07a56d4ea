"""Owns how long each request waited for its first step; knows nothing of why it waited."""

from collections.abc import Iterable, Sequence

from llm_scheduler.plan import NewRow


class QueueTimes:
    """Keeps a time for each request from its arrival to the outputs of its first tokens."""

    def __init__(self) -> None:
        self._arrived_s: dict[str, float] = {}
        self._waited_s: dict[str, float] = {}

    def __len__(self) -> int:
        """Requests of which something is kept."""
        return len(self._arrived_s) + len(self._waited_s)

    def arrived(self, request_id: str, now_s: float) -> None:
        """The request was queued."""
        self._arrived_s[request_id] = now_s

    def admitted(self, rows: Sequence[NewRow], now_s: float) -> None:
        """These got a slot; of those that come back after a preemption nothing changes."""
        for row in rows:
            arrived_s = self._arrived_s.pop(row.request_id, None)
            if arrived_s is not None:
                self._waited_s[row.request_id] = now_s - arrived_s

    def take(self, request_id: str) -> float:
        """Seconds that the request waited, told once; 0 from then on."""
        if not self:
            return 0.0  # each output of each step asks
        self._arrived_s.pop(request_id, None)  # ended without a step
        return self._waited_s.pop(request_id, 0.0)

    def forget(self, request_ids: Iterable[str]) -> None:
        """These have ended."""
        for request_id in request_ids:
            self._arrived_s.pop(request_id, None)
            self._waited_s.pop(request_id, None)
