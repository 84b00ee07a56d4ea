"""How long an answer took, for one line on stderr. Knows neither models nor terminals."""

from __future__ import annotations

import time
from collections.abc import Callable

from llm_engine.outputs import RequestDelta


class AnswerStats:
    """Times of one answer, from the start of its command.

    Args:
        clock: Seconds; only differences count.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._began_s = clock()
        self._asked_s = self._first_s = self._last_s = self._began_s
        self._num_prompt_tokens = self._num_first = self._num_tokens = 0

    def asked(self) -> None:
        """The model is loaded and the request goes out."""
        self._asked_s = self._clock()

    def note(self, delta: RequestDelta) -> None:
        """Tokens have come."""
        self._last_s = self._clock()
        if not self._num_tokens and delta.token_ids:
            self._first_s, self._num_first = self._last_s, len(delta.token_ids)
        self._num_tokens += len(delta.token_ids)
        self._num_prompt_tokens = delta.num_prompt_tokens

    def line(self) -> str:
        """All of it in words. The rate counts the tokens after the first ones."""
        parts = [f"model ready after {self._asked_s - self._began_s:.2f} s"]
        if self._num_tokens:
            ttft_s = self._first_s - self._asked_s
            parts.append(f"first token {ttft_s:.3f} s after {self._num_prompt_tokens} prompt tokens")
        words = f"{self._num_tokens} tokens"
        seconds, more = self._last_s - self._first_s, self._num_tokens - self._num_first
        if more and seconds > 0:
            words += f" at {more / seconds:.1f} a second"
        return "; ".join([*parts, words])
