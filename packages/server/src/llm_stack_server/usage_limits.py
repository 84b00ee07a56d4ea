"""What each API key may use, as one request sees it, and what is counted of it. Knows no routes."""

from __future__ import annotations

from dataclasses import dataclass, field

from starlette.requests import Request

from llm_stack_server.asgi import App, Message, Receive, Scope, Send
from llm_stack_server.auth import api_key_of
from llm_stack_server.errors import ApiError
from llm_stack_server.http_errors import error_response
from llm_stack_server.keys import ApiKey
from llm_stack_server.metrics import Metrics
from llm_stack_server.usage_ledger import Ledger, Place

PERMIT_STATE = "permit"
_MCP = "/mcp"  # its tools post to the routes, which count
_TOO_MANY = 429


class UsageLimits:
    """The limits of one application. Without keys, all clients share those of one."""

    def __init__(self, ledger: Ledger, metrics: Metrics) -> None:
        self.ledger = ledger
        self.metrics = metrics
        metrics.show("queue_running", "Sequences let in by the server's queue.", lambda: ledger.num_running)
        metrics.show("queue_waiting", "Calls in the server's queue.", lambda: ledger.num_waiting)
        metrics.show(
            "queue_waiting_tokens", "Prompt tokens in the server's queue.", lambda: ledger.num_waiting_tokens
        )

    def permit(self, key: ApiKey | None) -> Permit:
        """What one request of ``key`` may do."""
        digest = "" if key is None else key.digest.hex()
        return Permit(self, digest, None if key is None else key.name, 1 if key is None else key.weight)


@dataclass(slots=True)
class Permit:
    """One request's leave to use the server. Implements `generation.Admission`."""

    _limits: UsageLimits
    _key: str
    _key_name: str | None
    _weight: int = 1
    _place: Place | None = field(default=None)
    _spent: dict[str, int] = field(default_factory=dict)

    async def begin(self) -> None:
        """Count the request.

        Raises:
            ApiError: 429: the key has sent as many as it may.
        """
        try:
            await self._limits.ledger.begin(self._key)
        except ApiError as error:
            self._count_refusal(error)
            raise
        if self._key_name is not None:
            self._limits.metrics.key_requests.labels(self._key_name).inc()

    async def enter(self, size: int, num_tokens: int) -> None:
        """Take the prompt's tokens from the rate, then wait for a place.

        Raises:
            ApiError: 429: too many tokens a minute, too many requests at once, or a full queue; 400: the
                prompt alone is more than the key may ever use in a minute.
        """
        try:
            self._place = await self._limits.ledger.enter(self._key, size, num_tokens, self._weight)
        except ApiError as error:
            self._count_refusal(error)
            raise
        if self._key_name is not None:
            self._limits.metrics.key_tokens.labels(self._key_name, "prompt").inc(num_tokens)

    def spend(self, num_tokens: int, kind: str = "output") -> None:
        """Count tokens known only after the work. They may overdraw the rate; later requests wait longer."""
        self._limits.ledger.spend(self._key, num_tokens)
        self._spent[kind] = (
            self._spent.get(kind, 0) + num_tokens
        )  # shown at the end: this runs for each token

    def leave(self) -> None:
        """Give the place back, and show what was spent."""
        place, self._place = self._place, None
        assert place is not None
        self._limits.ledger.leave(place)
        if self._key_name is not None:
            for kind, num_tokens in self._spent.items():
                self._limits.metrics.key_tokens.labels(self._key_name, kind).inc(num_tokens)
        self._spent.clear()

    def headers(self) -> list[tuple[bytes, bytes]]:
        """The ``x-ratelimit-`` headers of the rates that are limited."""
        found: list[tuple[bytes, bytes]] = []
        levels = self._limits.ledger.levels(self._key)
        for kind, level in (("requests", levels.requests), ("tokens", levels.tokens)):
            if level is not None:
                shown = (
                    ("limit", str(level.per_minute)),
                    ("remaining", str(level.remaining)),
                    ("reset", f"{level.seconds_to_full:.3f}s"),
                )
                found += [(f"x-ratelimit-{part}-{kind}".encode(), value.encode()) for part, value in shown]
        return found

    def _count_refusal(self, error: ApiError) -> None:
        if error.status == _TOO_MANY:
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
            await permit.begin()
        except ApiError as error:
            await error_response(error, scope)(scope, receive, send_with_rates)
            return
        scope["state"] = {**scope.get("state", {}), PERMIT_STATE: permit}
        await self._app(scope, receive, send_with_rates)


def permit_of(request: Request) -> Permit:
    """The permit that the middleware gave the request."""
    permit: Permit = request.scope["state"][PERMIT_STATE]
    return permit
