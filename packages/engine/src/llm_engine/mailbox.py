"""Owns the hand-over of a request's deltas to its reader; knows nothing of where they come from.

A reader that is slower than the engine makes nothing pile up: deltas of a choice that were not read yet
are joined into one, so what waits is bounded by the request's own length.
"""

import asyncio

import msgspec

from llm_engine.errors import EngineError
from llm_engine.outputs import RequestDelta


class Mailbox:
    """Deltas on their way to one reader; both sides belong to one event loop.

    Args:
        num_choices: After so many deltas with a finish reason the request is over.
    """

    def __init__(self, num_choices: int) -> None:
        self._open_choices = num_choices
        self._waiting: dict[int, RequestDelta] = {}
        self._error: EngineError | None = None
        self._waiter: asyncio.Future[None] | None = None

    def put(self, item: RequestDelta | EngineError) -> None:
        """Add a delta, or the error that ends the request."""
        if isinstance(item, EngineError):
            self._error = item
        else:
            earlier = self._waiting.get(item.index)
            self._waiting[item.index] = item if earlier is None else join_deltas(earlier, item)
        if self._waiter is not None:
            if not self._waiter.done():
                self._waiter.set_result(None)
            self._waiter = None

    async def get(self) -> RequestDelta | None:
        """The next delta; None after the last.

        Raises:
            EngineError: The request ended with it; deltas before it were given out.
        """
        if self._open_choices == 0:
            return None
        while not self._waiting:
            if self._error is not None:
                raise self._error
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        delta = self._waiting.pop(next(iter(self._waiting)))
        if delta.finish_reason is not None:
            self._open_choices -= 1
        return delta


def join_deltas(first: RequestDelta, second: RequestDelta) -> RequestDelta:
    """Two deltas of one choice, the second following the first, as one."""
    return msgspec.structs.replace(
        second,
        text=first.text + second.text,
        token_ids=first.token_ids + second.token_ids,
        logprobs=None if second.logprobs is None else (first.logprobs or ()) + second.logprobs,
        num_cached_tokens=max(first.num_cached_tokens, second.num_cached_tokens),
        prompt_logprobs=first.prompt_logprobs or second.prompt_logprobs,
        pinned_tokens=first.pinned_tokens or second.pinned_tokens,
        queue_s=max(first.queue_s, second.queue_s),
    )
