"""Keeps what every API key has used: places in the queue and rates. Knows neither HTTP nor metrics.

One ledger stands for the whole server, however many processes answer HTTP.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import Protocol

from llm_stack_server.errors import InvalidField, Overloaded
from llm_stack_server.fair_queue import FairQueue, QueueLimits, Turn
from llm_stack_server.rate_limit import Clock, TokenBucket
from llm_stack_server.settings import ServerSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """What one key may use a minute; 0 stands for no limit."""

    requests: int = 0
    tokens: int = 0


@dataclass(frozen=True, slots=True)
class Level:
    """How full a rate's bucket is.

    Attributes:
        per_minute: The rate, and what the bucket holds.
        remaining: What can be used now.
        seconds_to_full: Until all can be used, if nothing more is.
    """

    per_minute: int
    remaining: int
    seconds_to_full: float


@dataclass(frozen=True, slots=True)
class Levels:
    """The buckets of one key; None where there is no limit."""

    requests: Level | None = None
    tokens: Level | None = None


class Place(Protocol):
    """A place that a call holds until it is given back."""


class Ledger(Protocol):
    """Lets the calls of keys in. A key is the hexadecimal digest of an API key, "" where there are none."""

    @property
    def num_running(self) -> int:
        """Sequences that were let in."""
        ...

    @property
    def num_waiting(self) -> int:
        """Calls that wait."""
        ...

    @property
    def num_waiting_tokens(self) -> int:
        """Their prompt tokens."""
        ...

    def levels(self, key: str) -> Levels:
        """The key's rates, as far as they are known here."""
        ...

    async def begin(self, key: str) -> None:
        """Count a request.

        Raises:
            ApiError: 429: the key has sent as many as it may.
        """
        ...

    async def enter(self, key: str, size: int, num_tokens: int, weight: int = 1) -> Place:
        """Take the prompt's tokens from the rate, then wait for a place for ``size`` sequences.

        ``weight`` is the key's share of the places, beside those of others that wait.

        Raises:
            ApiError: 429: too many tokens a minute, too many requests at once, or a full queue; 400: the
                prompt alone is more than the key may ever use in a minute. Nothing is held then.
        """
        ...

    def spend(self, key: str, num_tokens: int) -> None:
        """Count tokens known only after the work. They may overdraw the rate."""
        ...

    def leave(self, place: Place) -> None:
        """Give a place back."""
        ...


class LocalLedger:
    """The ledger itself. Belongs to one event loop."""

    def __init__(self, queue: QueueLimits, rates: Rates, clock: Clock = time.monotonic) -> None:
        self._queue = FairQueue(queue, clock)
        self._rates = rates
        self._clock = clock
        self._buckets: dict[str, tuple[TokenBucket | None, TokenBucket | None]] = {}

    @property
    def num_running(self) -> int:
        """Sequences that were let in."""
        return self._queue.num_running

    @property
    def num_waiting(self) -> int:
        """Calls that wait."""
        return self._queue.num_waiting

    @property
    def num_waiting_tokens(self) -> int:
        """Their prompt tokens."""
        return self._queue.num_waiting_tokens

    def levels(self, key: str) -> Levels:
        """The key's rates."""
        requests, tokens = self._of(key)
        return Levels(_level(requests), _level(tokens))

    async def begin(self, key: str) -> None:
        """Count a request, see `Ledger`."""
        bucket, _ = self._of(key)
        wait_s = 0.0 if bucket is None else bucket.take(1)
        if bucket is not None and wait_s:
            raise Overloaded(
                f"this API key may send {bucket.per_minute} requests a minute",
                code="request_rate_exceeded",
                retry_after_s=math.ceil(wait_s),
            )

    async def enter(self, key: str, size: int, num_tokens: int, weight: int = 1) -> Turn:
        """Take tokens and wait for a place, see `Ledger`."""
        _, bucket = self._of(key)
        if bucket is not None:
            _take(bucket, num_tokens)
        try:
            return await self._queue.enter(key, size, num_tokens, weight)
        except BaseException:
            if bucket is not None:
                bucket.spend(-num_tokens)  # nothing ran
            raise

    def spend(self, key: str, num_tokens: int) -> None:
        """Count tokens known only after the work."""
        _, bucket = self._of(key)
        if bucket is not None:
            bucket.spend(num_tokens)

    def leave(self, place: Place) -> None:
        """Give a place back."""
        assert isinstance(place, Turn)
        self._queue.leave(place)

    def _of(self, key: str) -> tuple[TokenBucket | None, TokenBucket | None]:
        buckets = self._buckets.get(key)
        if buckets is None:
            rates = self._rates
            buckets = self._buckets[key] = (
                TokenBucket(rates.requests, self._clock) if rates.requests else None,
                TokenBucket(rates.tokens, self._clock) if rates.tokens else None,
            )
        return buckets


def ledger_of(settings: ServerSettings) -> LocalLedger:
    """A ledger with the limits of the options."""
    return LocalLedger(
        QueueLimits(
            running=settings.max_concurrent_requests,
            waiting=settings.max_queued_requests,
            waiting_tokens=settings.max_queued_tokens,
            per_key=settings.max_requests_per_key,
        ),
        Rates(requests=settings.requests_per_minute, tokens=settings.tokens_per_minute),
    )


def _level(bucket: TokenBucket | None) -> Level | None:
    return None if bucket is None else Level(bucket.per_minute, bucket.remaining, bucket.seconds_to_full)


def _take(bucket: TokenBucket, num_tokens: int) -> None:
    wait_s = bucket.take(num_tokens)
    if math.isinf(wait_s):
        raise InvalidField(
            None,
            f"the prompt of {num_tokens} tokens is more than this API key may use in a minute "
            f"({bucket.per_minute})",
            code="prompt_exceeds_token_rate",
        )
    if wait_s:
        raise Overloaded(
            f"this API key may use {bucket.per_minute} tokens a minute",
            code="token_rate_exceeded",
            retry_after_s=math.ceil(wait_s),
        )
