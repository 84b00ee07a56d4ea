"""Owns the bound on requests that came while no core ran; knows nothing of cores."""

from llm_engine.errors import EngineRestarting
from llm_engine.live_requests import LiveRequest
from llm_engine.options import EngineOptions

RETRY_AFTER_S = 2.0
"""When to try again while a core is being started."""


class EarlyRequests:
    """Requests that wait for a core; as many as its queue would take.

    Args:
        options: With the bounds of the queue.
    """

    def __init__(self, options: EngineOptions) -> None:
        self._max_requests = options.max_waiting_requests
        self._max_tokens = options.max_waiting_tokens
        self._waiting: set[LiveRequest] = set()
        self._num_tokens = 0

    def add(self, live: LiveRequest) -> None:
        """Let a request wait.

        Raises:
            EngineRestarting: Too many requests or tokens wait.
        """
        num_choices, num_tokens = len(live.choices), self._tokens_of(live)
        waiting = sum(len(one.choices) for one in self._waiting)
        if waiting and (
            waiting + num_choices > self._max_requests or self._num_tokens + num_tokens > self._max_tokens
        ):
            raise EngineRestarting(
                RETRY_AFTER_S, f"the engine core is being restarted and {waiting} requests wait for it"
            )
        self._waiting.add(live)
        self._num_tokens += num_tokens

    def discard(self, live: LiveRequest) -> None:
        """A request does not wait any more."""
        if live in self._waiting:
            self._waiting.remove(live)
            self._num_tokens -= self._tokens_of(live)

    def clear(self) -> None:
        """A core has come: nobody waits."""
        self._waiting.clear()
        self._num_tokens = 0

    @staticmethod
    def _tokens_of(live: LiveRequest) -> int:
        return len(live.prompt.token_ids) * len(live.choices)
