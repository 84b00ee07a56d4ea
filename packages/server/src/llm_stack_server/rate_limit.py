"""Token buckets: how much of something one may use a minute. Knows neither keys nor requests."""

from __future__ import annotations

import time
from collections.abc import Callable

Clock = Callable[[], float]


class TokenBucket:
    """Holds at most a minute's worth and fills steadily. May be overdrawn; what is owed fills first."""

    def __init__(self, per_minute: int, clock: Clock = time.monotonic) -> None:
        self.per_minute = per_minute
        self._clock = clock
        self._level = float(per_minute)
        self._updated_s = clock()

    def take(self, amount: int) -> float:
        """Take ``amount`` if there is as much.

        Returns:
            0 where it was taken; else the seconds until it will be there, and nothing was taken. They are
            infinite for more than the bucket ever holds.
        """
        level = self._fill()
        if amount <= level:
            self._level = level - amount
            return 0.0
        if amount > self.per_minute:
            return float("inf")
        return self._seconds_for(amount - level)

    def spend(self, amount: int) -> None:
        """Take ``amount`` whether or not it is there; a negative one gives back."""
        self._level = min(float(self.per_minute), self._fill() - amount)

    @property
    def remaining(self) -> int:
        """What can be taken now."""
        return max(0, int(self._fill()))

    @property
    def seconds_to_full(self) -> float:
        """Until the bucket is full, if nothing more is taken."""
        return self._seconds_for(self.per_minute - self._fill())

    def _fill(self) -> float:
        now_s = self._clock()
        gained = (now_s - self._updated_s) * self.per_minute / 60
        self._level = min(float(self.per_minute), self._level + gained)
        self._updated_s = now_s
        return self._level

    def _seconds_for(self, amount: float) -> float:
        return amount * 60 / self.per_minute
