"""Requests kept in a policy's order; knows nothing of policies or of what the order is for."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator

from llm_scheduler.request import OrderKey, RequestState


def _key(state: RequestState) -> OrderKey:
    return state.key


class OrderedRequests:
    """A sorted list of requests; keys are unique, so any request is found by bisection."""

    def __init__(self) -> None:
        self._states: list[RequestState] = []
        self._num_prompt_tokens = 0

    def __len__(self) -> int:
        return len(self._states)

    def __iter__(self) -> Iterator[RequestState]:
        return iter(self._states)

    @property
    def num_prompt_tokens(self) -> int:
        """Prompt tokens over all requests."""
        return self._num_prompt_tokens

    def first(self) -> RequestState:
        """Return the request that is served first; the list must not be empty."""
        return self._states[0]

    def last(self) -> RequestState:
        """Return the request that is served last; the list must not be empty."""
        return self._states[-1]

    def add(self, state: RequestState) -> None:
        """Put a request at its place."""
        insort(self._states, state, key=_key)
        self._num_prompt_tokens += state.num_prompt_tokens

    def remove(self, state: RequestState) -> None:
        """Take out a request that is in the list."""
        index = bisect_left(self._states, state.key, key=_key)
        assert self._states[index] is state, "the request is not in this list"
        del self._states[index]
        self._num_prompt_tokens -= state.num_prompt_tokens
