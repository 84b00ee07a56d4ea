"""Requests kept in the order of one of their attributes; knows nothing of what the order is for."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterator
from operator import attrgetter

from llm_scheduler.request import OrderKey, RequestState


class OrderedRequests:
    """A sorted list of requests; places are unique, so any request is found by bisection.

    Args:
        by: Attribute of ``RequestState`` that holds the place: "key", "rank" or "age". It must not change
            while the request is in the list.
    """

    def __init__(self, by: str = "key") -> None:
        self._place: Callable[[RequestState], OrderKey] = attrgetter(by)
        self._states: list[RequestState] = []

    def __len__(self) -> int:
        return len(self._states)

    def __iter__(self) -> Iterator[RequestState]:
        return iter(self._states)

    def __reversed__(self) -> Iterator[RequestState]:
        return reversed(self._states)

    def __getitem__(self, index: int) -> RequestState:
        return self._states[index]

    def first(self) -> RequestState:
        """Return the request that is served first; the list must not be empty."""
        return self._states[0]

    def last(self) -> RequestState:
        """Return the request that is served last; the list must not be empty."""
        return self._states[-1]

    def add(self, state: RequestState) -> None:
        """Put a request at its place."""
        insort(self._states, state, key=self._place)

    def remove(self, state: RequestState) -> None:
        """Take out a request that is in the list."""
        index = bisect_left(self._states, self._place(state), key=self._place)
        assert self._states[index] is state, "the request is not in this list"
        del self._states[index]
