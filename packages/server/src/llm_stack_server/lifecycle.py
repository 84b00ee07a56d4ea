"""The phases of a server: starting, ready, draining. Decides who is let in, not what they get."""

from __future__ import annotations

import asyncio
import time
from enum import Enum

from llm_stack_server.asgi import App, Receive, Scope, Send
from llm_stack_server.auth import OPEN_PATHS
from llm_stack_server.engine_port import Engine
from llm_stack_server.errors import Unavailable
from llm_stack_server.http_errors import error_response

_RETRY_AFTER_S = 5
# Served in every phase and not waited for by a drain.
_ALWAYS_OPEN = OPEN_PATHS | {"/metrics", "/version"}


class Phase(Enum):
    """Where the server is in its life."""

    STARTING = "starting"
    READY = "ready"
    DRAINING = "draining"


class Lifecycle:
    """Holds the engine once it runs and counts the requests in flight."""

    def __init__(self) -> None:
        self.phase = Phase.STARTING
        self.in_flight = 0
        self.stalled = False  # the engine's loop has not turned for long
        self._engine: Engine | None = None
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def engine(self) -> Engine | None:
        """The engine, or None while it starts."""
        return self._engine

    def attach(self, engine: Engine) -> None:
        """The engine runs: begin to serve."""
        self._engine = engine
        self.phase = Phase.READY

    def begin_drain(self) -> None:
        """Take no new work; what runs may finish."""
        self.phase = Phase.DRAINING

    async def wait_idle(self, timeout_s: float) -> bool:
        """Wait until nothing is in flight; False where that took longer than ``timeout_s``."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._idle.wait()
        except TimeoutError:
            return False
        return True

    def require_engine(self) -> Engine:
        """The engine, which takes requests while it runs and while it is being restarted: these wait.

        Raises:
            Unavailable: 503: it is still starting, or it is gone.
        """
        fault = self.fault()
        if fault is not None and fault.code != "engine_restarting":
            raise fault
        assert self._engine is not None
        return self._engine

    def fault(self) -> Unavailable | None:
        """Why the server cannot serve now; None where it can."""
        if self.phase is Phase.DRAINING:
            return Unavailable("the server is shutting down", code="draining", retry_after_s=_RETRY_AFTER_S)
        if self._engine is None:
            return Unavailable("the model is still loading", code="starting", retry_after_s=_RETRY_AFTER_S)
        state = self._engine.state
        if state.phase == "dead":
            return Unavailable("the engine is not running", code="engine_dead", retry_after_s=_RETRY_AFTER_S)
        if state.phase != "running":
            since_s = max(0.0, time.time() - state.since_s)
            return Unavailable(
                f"the engine is being restarted for {since_s:.1f} s, attempt {state.attempt}: {state.reason}",
                code="engine_restarting",
                retry_after_s=_RETRY_AFTER_S,
            )
        if self.stalled:
            return Unavailable(
                "the engine does not answer", code="engine_stalled", retry_after_s=_RETRY_AFTER_S
            )
        return None

    def enter(self) -> None:
        """A request begins."""
        self.in_flight += 1
        self._idle.clear()

    def leave(self) -> None:
        """A request has ended, its last byte sent."""
        self.in_flight -= 1
        if self.in_flight == 0:
            self._idle.set()


class AdmissionMiddleware:
    """Counts requests in flight; while draining it answers 503 to all but probes and metrics."""

    def __init__(self, app: App, lifecycle: Lifecycle) -> None:
        self._app = app
        self._lifecycle = lifecycle

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let the request in, or refuse it."""
        if scope["type"] != "http" or scope["path"] in _ALWAYS_OPEN:
            await self._app(scope, receive, send)
            return
        if self._lifecycle.phase is Phase.DRAINING:
            fault = self._lifecycle.fault()
            assert fault is not None
            await error_response(fault, scope)(scope, receive, send)
            return
        self._lifecycle.enter()
        try:
            await self._app(scope, receive, send)
        finally:
            self._lifecycle.leave()
