"""When a request ends by what it yielded; knows nothing of steps, slots or the cache."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from llm_scheduler.plan import Bool, Int32
from llm_scheduler.request import RequestState


def take_tokens(state: RequestState, tokens: list[int]) -> tuple[list[int], str | None, int | None]:
    """Add sampled tokens to a request's outputs up to its end.

    A stop token ends it only once ``min_tokens`` outputs came before; tokens behind the end are dropped.

    Args:
        state: A request below its limit, with all its outputs.
        tokens: At least one token, in order.

    Returns:
        The tokens taken, the finish reason ("stop", "length" or None), and the stop token or None.
    """
    outputs = state.outputs
    num_before = len(outputs)
    for token in tokens:
        outputs.append(token)
        reason = finish_reason(state, token, len(outputs))
        if reason is not None:
            return tokens[: len(outputs) - num_before], reason, token if reason == "stop" else None
    return tokens, None, None


def finish_reason(state: RequestState, token: int, num_outputs: int) -> str | None:
    """Tell whether a request ends with this token, its ``num_outputs``-th: "stop", "length" or None."""
    if token in state.stop_token_ids and num_outputs > state.request.min_tokens:
        return "stop"
    return "length" if num_outputs == state.max_outputs else None


class StopFilter:
    """Tells for many tokens at once which may be a stop token of some running request.

    It counts stop tokens by their low bits, so that it is small and a check is one lookup for all rows. What
    it names is to be checked exactly; what it does not name is no stop token of anybody.
    """

    _SIZE = 1 << 16

    def __init__(self) -> None:
        self._count: Int32 = np.zeros(self._SIZE, np.int32)

    def add(self, tokens: Iterable[int]) -> None:
        """Count the stop tokens of a request that starts to run."""
        for token in tokens:
            self._count[token & (self._SIZE - 1)] += 1

    def remove(self, tokens: Iterable[int]) -> None:
        """Count the stop tokens of a request that runs no more."""
        for token in tokens:
            self._count[token & (self._SIZE - 1)] -= 1

    def may_stop(self, tokens: Int32) -> Bool:
        """Return bool[R]: whether each token may be a stop token."""
        counted: Bool = self._count[tokens & (self._SIZE - 1)] > 0
        return counted
