"""The requests that wait, in the order they are to be admitted; knows nothing of slots, blocks or steps."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass, field
from operator import attrgetter
from typing import TypeAlias

from llm_scheduler.aging import Aging
from llm_scheduler.ordering import OrderedRequests
from llm_scheduler.policy import Policy
from llm_scheduler.request import OrderKey, Request, RequestState

Admits: TypeAlias = Callable[[Request], bool]
_place = attrgetter("place")


@dataclass(slots=True, eq=False)
class _Lane:
    """Requests of one urgency and lane; ``place`` is where the lane stands in the sorted list."""

    urgency: int
    name: Hashable
    requests: OrderedRequests = field(default_factory=lambda: OrderedRequests("key"))
    place: OrderKey = ()
    num_skipped: int = 0


class WaitingQueue:
    """Waiting requests: those that aging put first, then by urgency, lane and key.

    Those that are not ready yet are kept apart and have no place in the order.

    Args:
        policy: Orders the requests.
        aging: Puts a request first that was passed over for too long.
    """

    def __init__(self, policy: Policy, aging: Aging) -> None:
        self._policy = policy
        self._aging = aging
        self._lanes: list[_Lane] = []
        self._lanes_by_name: dict[Hashable, dict[int, _Lane]] = {}
        self._aged = OrderedRequests("rank")
        self._not_ready: dict[str, RequestState] = {}
        self._num_requests = 0
        self._num_prompt_tokens = 0
        self._version = 0
        self._round: tuple[int, int] = (0, 0)
        self._exhausted: tuple[int, int] | None = None

    def __len__(self) -> int:
        return self._num_requests

    def __iter__(self) -> Iterator[RequestState]:
        """Go through the requests that may be admitted, in order."""
        yield from self._aged
        for lane in self._lanes:
            yield from lane.requests

    @property
    def num_prompt_tokens(self) -> int:
        """Prompt tokens over all requests."""
        return self._num_prompt_tokens

    @property
    def num_not_ready(self) -> int:
        """Requests that wait for something besides a slot and blocks."""
        return len(self._not_ready)

    @property
    def num_ready(self) -> int:
        """Requests that wait for nothing but a slot and blocks."""
        return self._num_requests - len(self._not_ready)

    def add(self, state: RequestState) -> None:
        """Take in a request, new or preempted."""
        self._num_requests += 1
        self._num_prompt_tokens += state.num_prompt_tokens
        if state.waits_for:
            self._not_ready[state.request.request_id] = state
        else:
            self._enter(state)

    def remove(self, state: RequestState) -> None:
        """Take out a request that waits; ``state.rank`` is then its place among the running ones."""
        self._num_requests -= 1
        self._num_prompt_tokens -= state.num_prompt_tokens
        if state.waits_for:
            del self._not_ready[state.request.request_id]
            return
        self._aging.depart(state)
        if state.promotion:
            self._aged.remove(state)
        else:
            self._leave_lane(state)

    def ready(self, request_id: str, what: str) -> bool:
        """Take note that something is ready; the request joins the order with the last of it.

        Returns:
            Whether the request was waiting for it.
        """
        state = self._not_ready.get(request_id)
        if state is None or what not in state.waits_for:
            return False
        state.waits_for.remove(what)
        if not state.waits_for:
            del self._not_ready[request_id]
            self._enter(state)
        return True

    def num_tokens_before(self, state: RequestState) -> int:
        """Return the known tokens of the requests that are admitted before this one, were it added now.

        A lane that nobody is in counts as the first of its urgency.
        """
        lane_or_none = self._lanes_by_name.get(state.lane, {}).get(state.urgency)
        place = (state.urgency,) if lane_or_none is None else lane_or_none.place
        before = sum(other.num_known_tokens for other in self._aged)
        for lane in self._lanes:
            if lane is lane_or_none:
                before += sum(other.num_known_tokens for other in lane.requests if other.key < state.key)
            elif lane.place < place:
                before += sum(other.num_known_tokens for other in lane.requests)
        return before

    # In order

    def begin_round(self, caps_version: int = 0) -> bool:
        """Prepare for picking requests to admit.

        Args:
            caps_version: Changes whenever a refused request may have become admissible.

        Returns:
            False where nobody can be picked: the last round refused everybody, and nothing has changed since.
        """
        self._round = (self._version, caps_version)
        if not self.num_ready or self._round == self._exhausted:
            return False
        for lane in self._lanes:
            lane.num_skipped = 0
        return True

    def pick(self, admits: Admits | None = None) -> RequestState | None:
        """Return the request to admit next, or None; it stays in the queue.

        Within a round a request that was refused once is not asked for again.
        """
        self._move_changed_lanes()
        self._promote(admits)
        for state in self._aged:
            if admits is None or admits(state.request):
                return state
        state_or_none = self._pick_from_lanes(admits)
        if state_or_none is None:
            self._exhausted = self._round
        return state_or_none

    def pick_more_urgent(self, urgency: int, admits: Admits | None = None) -> RequestState | None:
        """As ``pick``, among the requests of smaller urgency and without those that aging put first."""
        if not self._lanes or self._lanes[0].urgency >= urgency:
            return None
        self._move_changed_lanes()
        state = self._pick_from_lanes(admits)
        return state if state is not None and state.urgency < urgency else None

    def is_more_urgent_than(self, state: RequestState) -> bool:
        """Tell whether somebody waits who may preempt this running request."""
        return bool(self._lanes) and not state.promotion and self._lanes[0].urgency < state.urgency

    @property
    def aged(self) -> Iterable[RequestState]:
        """Requests that aging put first and that are not admitted yet."""
        return self._aged

    # Lanes

    def _enter(self, state: RequestState) -> None:
        self._version += 1
        self._aging.enter(state)
        if state.promotion:
            self._aged.add(state)
            return
        lanes = self._lanes_by_name.setdefault(state.lane, {})
        lane = lanes.get(state.urgency)
        if lane is None:
            lane = lanes[state.urgency] = _Lane(state.urgency, state.lane)
            lane.requests.add(state)
            self._insert(lane)
            return
        lane.requests.add(state)
        if lane.requests.first() is state:
            self._move(lane)

    def _leave_lane(self, state: RequestState) -> None:
        lane = self._lanes_by_name[state.lane][state.urgency]
        state.rank = (1, *lane.place[:2], *state.key)
        was_first = lane.requests.first() is state
        lane.requests.remove(state)
        if not len(lane.requests):
            self._take_out(lane)
            del self._lanes_by_name[lane.name][lane.urgency]
            if not self._lanes_by_name[lane.name]:
                del self._lanes_by_name[lane.name]
        elif was_first:
            self._move(lane)

    def _insert(self, lane: _Lane) -> None:
        lane.place = (lane.urgency, self._policy.lane_key(lane.name), *lane.requests.first().key)
        insort(self._lanes, lane, key=_place)

    def _take_out(self, lane: _Lane) -> None:
        index = bisect_left(self._lanes, lane.place, key=_place)
        assert self._lanes[index] is lane, "the lane is not at its place"
        del self._lanes[index]

    def _move(self, lane: _Lane) -> None:
        self._take_out(lane)
        self._insert(lane)

    def _move_changed_lanes(self) -> None:
        for name in self._policy.changed_lanes():
            for lane in self._lanes_by_name.get(name, {}).values():
                self._move(lane)

    def _promote(self, admits: Admits | None) -> None:
        state = self._aging.due(admits)
        if state is not None:
            self._leave_lane(state)
            state.rank = (0, state.promotion)
            self._aged.add(state)

    def _pick_from_lanes(self, admits: Admits | None) -> RequestState | None:
        for lane in self._lanes:
            if admits is None:
                return lane.requests.first()
            for index in range(lane.num_skipped, len(lane.requests)):
                state = lane.requests[index]
                if admits(state.request):
                    return state
                lane.num_skipped += 1
        return None
