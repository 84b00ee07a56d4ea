"""Owns the search for stop strings that count only from the `min_tokens`th token on; knows nothing of tokens.

The tokenizer's own stop search starts with the first token. A request with `min_tokens` and stop strings is
rare, so its search is done here, in Python: an occurrence that completes too early is ordinary text.
"""

from collections.abc import Sequence


class LateStops:
    """Searches a growing text; holds back an end that may begin a stop string."""

    def __init__(self, stops: Sequence[str], *, include_stop: bool) -> None:
        self._stops = tuple(stops)
        self._include_stop = include_stop
        self._held = ""

    def push(self, text: str, *, armed: bool) -> tuple[str, int]:
        """Add text.

        Args:
            text: What is new.
            armed: Whether a stop string that completes in `text` counts.

        Returns:
            The text that may be shown now, and the index of the stop string that was hit or -1. After a hit
            the search is over and nothing is held back.
        """
        buffer = self._held + text
        hit = self._first_hit(buffer) if armed else None
        if hit is None:
            shown = len(buffer) - self._num_held(buffer)
            self._held = buffer[shown:]
            return buffer[:shown], -1
        end, start, index = hit
        self._held = ""
        return buffer[: end if self._include_stop else start], index

    def finish(self) -> str:
        """Give out what is held back."""
        held, self._held = self._held, ""
        return held

    def _first_hit(self, buffer: str) -> tuple[int, int, int] | None:
        """(end, start, index) of the occurrence that completes first, after the text that was held back."""
        hits = []
        for index, stop in enumerate(self._stops):
            start = buffer.find(stop, max(0, len(self._held) - len(stop) + 1))
            if start >= 0:
                hits.append((start + len(stop), start, index))
        return min(hits, default=None)

    def _num_held(self, buffer: str) -> int:
        """Characters at the end of the buffer that may begin a stop string."""
        longest = min(len(buffer), max(len(stop) for stop in self._stops) - 1)
        for size in range(longest, 0, -1):
            tail = buffer[-size:]
            if any(len(stop) > size and stop.startswith(tail) for stop in self._stops):
                return size
        return 0
