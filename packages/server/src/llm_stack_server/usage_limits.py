"""What each API key may use: rates, places in the queue, and what is counted of it. Knows no routes."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field

from starlette.requests import Request

from llm_stack_server.asgi import App, Message, Receive, Scope, Send
from llm_stack_server.auth import api_key_of
from llm_stack_server.errors import InvalidField, Overloaded
from llm_stack_server.fair_queue import FairQueue, QueueLimits, Turn
from llm_stack_server.http_errors import error_response
from llm_stack_server.keys import ApiKey
from llm_stack_server.metrics import Metrics
from llm_stack_server.rate_limit import Clock, TokenBucket

PERMIT_STATE = "permit"
_MCP = "/mcp"  # its tools post to the routes, which count


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """What one key may use a minute; 0 stands for no limit."""

    requests: int = 0
    tokens: int = 0


class UsageLimits:
    """The limits of one application. Without keys, all clients share those of one."""

    def __init__(
        self, queue: QueueLimits, rates: Rates, metrics: Metrics, clock: Clock = time.monotonic
    ) -> None:
        self.queue = FairQueue(queue, clock)
        self.metrics = metrics
        self._rates = rates
        self._clock = clock
        self._buckets: dict[bytes, tuple[TokenBucket | None, TokenBucket | None]] = {}
        metrics.show(
            "queue_running", "Sequences let in by the server's queue.", lambda: self.queue.num_running
        )
        metrics.show("queue_waiting", "Calls in the server's queue.", lambda: self.queue.num_waiting)
        metrics.show(
            "queue_waiting_tokens",
            "Prompt tokens in the server's queue.",
            lambda: self.queue.num_waiting_tokens,
        )

    def permit(self, key: ApiKey | None) -> Permit:
        """What one request of ``key`` may do."""
        digest = b"" if key is None else key.digest
        if digest not in self._buckets:
            rates = self._rates
            self._buckets[digest] = (
                TokenBucket(rates.requests, self._clock) if rates.requests else None,
                TokenBucket(rates.tokens, self._clock) if rates.tokens else None,
            )
        requests, tokens = self._buckets[digest]
        return Permit(self, digest.hex(), None if key is None else key.name, requests, tokens)


@dataclass(slots=True)
class Permit:
    """One request's leave to use the server. Implements `generation.Admission`."""

    _limits: UsageLimits
    _key: str
    _key_name: str | None
    _requests: TokenBucket | None
    _tokens: TokenBucket | None
    _turn: Turn | None = field(default=None)
    _spent: dict[str, int] = field(default_factory=dict)

    def begin(self) -> None:
        """Count the request.

        Raises:
            Overloaded: the key has sent as many as it may.
        """
        bucket = self._requests
        wait_s = 0.0 if bucket is None else bucket.take(1)
        if bucket is not None and wait_s:
            raise self._refusal(
                f"this API key may send {bucket.per_minute} requests a minute",
                "request_rate_exceeded",
                wait_s,
            )
        if self._key_name is not None:
            self._limits.metrics.key_requests.labels(self._key_name).inc()

    async def enter(self, size: int, num_tokens: int) -> None:
        """Take the prompt's tokens from the rate, then wait for a place.

        Raises:
            Overloaded: too many tokens a minute, too many requests at once, or a full queue.
            InvalidField: the prompt alone is more than the key may ever use in a minute.
        """
        self._take_tokens(num_tokens)
        try:
            self._turn = await self._limits.queue.enter(self._key, size, num_tokens)
        except BaseException as error:
            if self._tokens is not None:
                self._tokens.spend(-num_tokens)  # nothing ran
            if isinstance(error, Overloaded):
                self._count_refusal(error)
            raise
        if self._key_name is not None:
            self._limits.metrics.key_tokens.labels(self._key_name, "prompt").inc(num_tokens)

    def spend(self, num_tokens: int, kind: str = "output") -> None:
        """Count tokens known only after the work. They may overdraw the rate; later requests wait longer."""
        if self._tokens is not None:
            self._tokens.spend(num_tokens)
        self._spent[kind] = (
            self._spent.get(kind, 0) + num_tokens
        )  # shown at the end: this runs for each token

    def leave(self) -> None:
        """Give the place back, and show what was spent."""
        turn, self._turn = self._turn, None
        assert turn is not None
        self._limits.queue.leave(turn)
        if self._key_name is not None:
            for kind, num_tokens in self._spent.items():
                self._limits.metrics.key_tokens.labels(self._key_name, kind).inc(num_tokens)
        self._spent.clear()

    def headers(self) -> list[tuple[bytes, bytes]]:
        """The ``x-ratelimit-`` headers of the rates that are limited."""
        found: list[tuple[bytes, bytes]] = []
        for kind, bucket in (("requests", self._requests), ("tokens", self._tokens)):
            if bucket is not None:
                shown = (
                    ("limit", str(bucket.per_minute)),
                    ("remaining", str(bucket.remaining)),
                    ("reset", f"{bucket.seconds_to_full:.3f}s"),
                )
                found += [(f"x-ratelimit-{part}-{kind}".encode(), value.encode()) for part, value in shown]
        return found

    def _take_tokens(self, num_tokens: int) -> None:
        bucket = self._tokens
        wait_s = 0.0 if bucket is None else bucket.take(num_tokens)
        if bucket is None or not wait_s:
            return
        if math.isinf(wait_s):
            raise InvalidField(
                None,
                f"the prompt of {num_tokens} tokens is more than this API key may use in a minute "
                f"({bucket.per_minute})",
                code="prompt_exceeds_token_rate",
            )
        raise self._refusal(
            f"this API key may use {bucket.per_minute} tokens a minute", "token_rate_exceeded", wait_s
        )

    def _refusal(self, message: str, code: str, wait_s: float) -> Overloaded:
        error = Overloaded(message, code=code, retry_after_s=math.ceil(wait_s))
        self._count_refusal(error)
        return error

    def _count_refusal(self, error: Overloaded) -> None:
        self._limits.metrics.refused.labels(error.code).inc()


class UsageMiddleware:
    """Counts every POST but cancelling against its key's rate, and shows the rates in the headers."""

    def __init__(self, app: App, limits: UsageLimits) -> None:
        self._app = app
        self._limits = limits

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on with its permit, or answer 429 before its body is read."""
        path = scope["path"]
        if scope["type"] != "http" or scope["method"] != "POST" or path == _MCP or path.endswith("/cancel"):
            await self._app(scope, receive, send)
            return
        permit = self._limits.permit(api_key_of(scope))

        async def send_with_rates(message: Message) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message.get("headers", ()), *permit.headers()]}
            await send(message)

        try:
            permit.begin()
        except Overloaded as error:
            await error_response(error, scope["path"])(scope, receive, send_with_rates)
            return
        scope["state"] = {**scope.get("state", {}), PERMIT_STATE: permit}
        await self._app(scope, receive, send_with_rates)


def permit_of(request: Request) -> Permit:
    """The permit that the middleware gave the request."""
    permit: Permit = request.scope["state"][PERMIT_STATE]
    return permit
