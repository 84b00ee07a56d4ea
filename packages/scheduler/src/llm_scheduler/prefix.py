"""The policy that serves the longest cached prefix first; knows nothing of how a hit is found."""

from __future__ import annotations

from collections.abc import Collection, Hashable

from llm_scheduler.policy import Policy, SchedulerView
from llm_scheduler.request import OrderKey, Request


class LongestPrefixFirst(Policy):
    """By the tokens that the prefix cache holds (more first), then by arrival; aged.

    Each request is a lane of its own. Its hit is looked up when it joins, then again in turns: at most
    ``probes_per_step`` waiting requests in each step that could admit one. A hit may so be out of date for
    ``waiting / probes_per_step`` such steps, which costs order and never correctness.

    Args:
        probes_per_step: Lookups a step.
    """

    def __init__(self, probes_per_step: int = 16) -> None:
        self._probes_per_step = probes_per_step
        self._view: SchedulerView | None = None
        self._hits: dict[str, int] = {}
        self._probed_at_step = -1

    def bind(self, view: SchedulerView) -> None:
        """Keep the view for lookups."""
        self._view = view

    def key(self, request: Request) -> OrderKey:
        """Return ``(arrival_s,)``."""
        return (request.arrival_s,)

    def lane(self, request: Request) -> Hashable:
        """Return the request's id."""
        return request.request_id

    def lane_key(self, lane: Hashable) -> float:
        """Return the tokens cached at the last lookup, negated."""
        request_id = str(lane)
        if request_id not in self._hits:
            self._hits[request_id] = max(self._look_up(request_id), 0)
        return -self._hits[request_id]

    def changed_lanes(self) -> Collection[Hashable]:
        """Look up the next few requests, once a step."""
        assert self._view is not None, "the policy is not bound"
        if self._view.num_steps == self._probed_at_step:
            return ()
        self._probed_at_step = self._view.num_steps
        changed = []
        # The dict is the turn: a request that was looked up goes to its end.
        for request_id in list(self._first_in_turn()):
            before = self._hits.pop(request_id)
            hit = self._look_up(request_id)
            if hit < 0:
                continue  # It runs; should it wait again, it is looked up anew.
            self._hits[request_id] = hit
            if hit != before:
                changed.append(request_id)
        return changed

    def left(self, request: Request) -> None:
        """Forget the request."""
        self._hits.pop(request.request_id, None)

    def _look_up(self, request_id: str) -> int:
        assert self._view is not None, "the policy is not bound"
        return self._view.cached_tokens(request_id)

    def _first_in_turn(self) -> Collection[str]:
        return [request_id for request_id, _ in zip(self._hits, range(self._probes_per_step), strict=False)]
