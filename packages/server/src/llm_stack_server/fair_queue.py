"""Lets work in up to a limit; what waits is bounded and shared fairly among keys. Knows nothing of HTTP."""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field

from llm_stack_server.errors import Overloaded

_MIN_RETRY_S = 1
_MAX_RETRY_S = 60
_SMOOTHING = 0.2  # weight of the newest interval between two ends


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueLimits:
    """What the queue holds to; 0 stands for no limit.

    Attributes:
        running: Sequences that run at once.
        waiting: Calls that wait.
        waiting_tokens: Prompt tokens of the calls that wait.
        per_key: Sequences of one key, running and waiting.
    """

    running: int = 0
    waiting: int = 0
    waiting_tokens: int = 0
    per_key: int = 0


@dataclass(slots=True, eq=False)
class Turn:
    """One call's place: waiting, then running until it is given back.

    Attributes:
        key: Whose call it is.
        size: Its sequences.
        num_tokens: Its prompt tokens.
        weight: The key's: with twice the weight of another it may run twice as much beside it.
    """

    key: str
    size: int
    num_tokens: int
    number: int = 0
    weight: int = 1
    granted: asyncio.Future[None] | None = field(default=None)


class FairQueue:
    """Admits the key with the fewest running sequences for its weight; of several, that let in longest ago.

    Within a key the oldest call goes first. A call that is larger than a limit counts as the limit, so that
    it runs alone. Belongs to one event loop.
    """

    def __init__(self, limits: QueueLimits, clock: Callable[[], float] = time.monotonic) -> None:
        self._limits = limits
        self._clock = clock
        self._running: Counter[str] = Counter()
        self._held: Counter[str] = Counter()  # running and waiting
        self._waiting: dict[str, deque[Turn]] = {}
        self._let_in_at: dict[str, int] = {}  # of keys that hold something: the number of the latest grant
        self._number = 0
        self._grants = 0
        self._interval_s = 0.0  # between two ends while calls wait
        self._last_end_s: float | None = None
        self.num_running = 0
        self.num_waiting = 0
        self.num_waiting_tokens = 0

    async def enter(self, key: str, size: int, num_tokens: int, weight: int = 1) -> Turn:
        """Wait for a turn; give it back with `leave`. Cancelling the wait frees the place.

        Raises:
            Overloaded: the key holds all that it may, or the queue is full. Nothing is held then.
        """
        turn = Turn(key, self._bounded_size(size), num_tokens, self._number, weight)
        self._number += 1
        self._check_key(turn)
        if not self.num_waiting and self._fits(turn):
            self._held[key] += turn.size
            self._run(turn)
            return turn
        self._check_room(turn)
        self._held[key] += turn.size
        self._append(turn)
        assert turn.granted is not None
        try:
            await turn.granted
        except asyncio.CancelledError:
            if turn.granted.cancelled():
                self._remove(turn)
                self._give_up(turn)
            else:  # let in, then cancelled before it could go on
                self.leave(turn)
            raise
        return turn

    def leave(self, turn: Turn) -> None:
        """The call has ended: let others in."""
        self.num_running -= turn.size
        _subtract(self._running, turn.key, turn.size)
        self._note_end()
        self._give_up(turn)

    # Refusals

    def _check_key(self, turn: Turn) -> None:
        limit = self._limits.per_key
        held = self._held[turn.key]
        if limit and held and held + turn.size > limit:
            raise Overloaded(
                f"this API key may have {limit} requests at once and has {held}",
                code="too_many_requests_of_key",
                retry_after_s=self._retry_after_s(1),
            )

    def _check_room(self, turn: Turn) -> None:
        limits = self._limits
        if limits.waiting and self.num_waiting >= limits.waiting:
            raise Overloaded(
                f"the server is full: {self.num_waiting} requests wait",
                code="queue_full",
                retry_after_s=self._retry_after_s(self.num_waiting),
            )
        waiting_tokens = self.num_waiting_tokens + turn.num_tokens
        if limits.waiting_tokens and self.num_waiting and waiting_tokens > limits.waiting_tokens:
            raise Overloaded(
                f"the server is full: {self.num_waiting_tokens} prompt tokens wait",
                code="queue_full",
                retry_after_s=self._retry_after_s(self.num_waiting),
            )

    def _retry_after_s(self, ends: int) -> int:
        """Seconds until so many calls will have ended, at the latest pace."""
        return min(_MAX_RETRY_S, max(_MIN_RETRY_S, math.ceil(ends * self._interval_s)))

    def _note_end(self) -> None:
        now_s = self._clock()
        if self._last_end_s is not None and self.num_waiting:
            self._interval_s += _SMOOTHING * (now_s - self._last_end_s - self._interval_s)
        self._last_end_s = now_s

    # Places

    def _bounded_size(self, size: int) -> int:
        bounds = [limit for limit in (self._limits.running, self._limits.per_key) if limit]
        return min([size, *bounds])

    def _fits(self, turn: Turn) -> bool:
        return not self._limits.running or self.num_running + turn.size <= self._limits.running

    def _rank(self, head: Turn) -> tuple[float, int, int]:
        return self._running[head.key] / head.weight, self._let_in_at.get(head.key, -1), head.number

    def _run(self, turn: Turn) -> None:
        self._grants += 1
        self._let_in_at[turn.key] = self._grants
        self.num_running += turn.size
        self._running[turn.key] += turn.size

    def _append(self, turn: Turn) -> None:
        turn.granted = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(turn.key, deque()).append(turn)
        self.num_waiting += 1
        self.num_waiting_tokens += turn.num_tokens

    def _remove(self, turn: Turn) -> None:
        turns = self._waiting.get(turn.key, ())
        if turn not in turns:
            return  # a cancelled one that `_let_in` has passed
        assert isinstance(turns, deque)
        turns.remove(turn)
        if not turns:
            del self._waiting[turn.key]
        self.num_waiting -= 1
        self.num_waiting_tokens -= turn.num_tokens

    def _give_up(self, turn: Turn) -> None:
        _subtract(self._held, turn.key, turn.size)
        if turn.key not in self._held:
            self._let_in_at.pop(turn.key, None)
        self._let_in()

    def _let_in(self) -> None:
        """Grant turns while the next one fits. None is overtaken for being large, so all get their turn."""
        while self._waiting:
            heads = (turns[0] for turns in self._waiting.values())
            turn = min(heads, key=self._rank)
            assert turn.granted is not None
            if turn.granted.cancelled():  # its task gives the place back as soon as it runs
                self._remove(turn)
                continue
            if not self._fits(turn):
                return
            self._remove(turn)
            self._run(turn)
            turn.granted.set_result(None)


def _subtract(counter: Counter[str], key: str, size: int) -> None:
    counter[key] -= size
    if not counter[key]:
        del counter[key]  # keys come and go
