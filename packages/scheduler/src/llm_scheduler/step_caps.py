"""Caps on what a step holds: encoder work, long prompts, draft tokens; knows nothing of slots or blocks."""

from __future__ import annotations

from collections.abc import Sequence

from llm_scheduler.caps import Cap
from llm_scheduler.request import EncoderItem, Request


class EncoderBudget(Cap):
    """At most so many encoder tokens a step: a chunk stops before an item that does not fit any more.

    An item is encoded in the step that computes its first placeholder token, and again where a request starts
    in the middle of it (after a prefix hit). An item above the whole budget runs as the first of a step. What
    was put off has first call on the budget of the next step.

    Args:
        most: Encoder tokens of a step.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._remaining = most
        self._entry_at: dict[str, int] = {}
        self._put_off: dict[str, int] = {}
        self._first: str | None = None

    def begin_step(self, budget: int, is_contended: bool) -> None:  # noqa: ARG002
        """Start with the whole budget, some of it reserved for what was put off first."""
        self._remaining = self._most
        self._first = next(iter(self._put_off), None)

    def left(self, request: Request) -> None:
        """Forget where the request began."""
        self._entry_at.pop(request.request_id, None)
        self._serve(request)

    def limit(self, request: Request, start: int, num_tokens: int) -> int:
        """Return the tokens before the first item that does not fit."""
        if not request.encoder_items:
            return num_tokens
        begins = self._entry_at.setdefault(request.request_id, start) == start
        end = start + num_tokens
        for item in request.encoder_items:
            is_entered = start <= item.position < end
            is_cut = begins and item.position < start < item.position + item.num_tokens
            if not is_entered and not is_cut:
                continue
            if not self._fits(request, item):
                self._put_off.setdefault(request.request_id, item.encoder_tokens)
                return max(start, item.position) - start
            self._remaining -= item.encoder_tokens
            self._serve(request)
        return num_tokens

    def _serve(self, request: Request) -> None:
        """Reserve nothing for the request any more."""
        self._put_off.pop(request.request_id, None)
        if self._first == request.request_id:
            self._first = None

    def _fits(self, request: Request, item: EncoderItem) -> bool:
        if self._first is None or self._first == request.request_id:
            return item.encoder_tokens <= self._remaining or self._remaining == self._most
        return item.encoder_tokens <= self._remaining - self._put_off[self._first]


class LongPrefillShare(Cap):
    """At most a share of the budget for long prompts while others want some of it, so that short ones pass.

    Args:
        share: Above 0, at most 1; at least one token passes.
        long_prompt_tokens: A request with more prompt tokens to compute than this is long.
    """

    def __init__(self, share: float, long_prompt_tokens: int) -> None:
        self._share = share
        self._long_prompt_tokens = long_prompt_tokens
        self._remaining = 0

    def begin_step(self, budget: int, is_contended: bool) -> None:
        """Set the share of this step aside."""
        self._remaining = max(1, int(budget * self._share)) if is_contended else budget

    def limit(self, request: Request, start: int, num_tokens: int) -> int:
        """Return what the share has left, for a long prompt."""
        if len(request.token_ids) - start <= self._long_prompt_tokens:
            return num_tokens
        granted = min(num_tokens, self._remaining)
        self._remaining -= granted
        return granted


class DraftLengths(Cap):
    """Draft tokens of a row by how many requests run: the fuller the batch, the fewer.

    Args:
        steps: (running requests, draft tokens) in ascending order of the first: up to so many requests, so
        many
            drafts a row; none beyond the last.
    """

    def __init__(self, steps: Sequence[tuple[int, int]]) -> None:
        self._steps = tuple(steps)

    def most_drafts(self, num_rows: int) -> int:
        """Return the draft tokens for a batch of that size."""
        return next((length for most_rows, length in self._steps if num_rows <= most_rows), 0)
