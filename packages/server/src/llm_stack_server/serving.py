"""One front end from its first request to its exit code: accept, get the engine, serve, drain."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from llm_engine.core.core_state import CoreState
from llm_engine.errors import EngineDead, EngineError, EngineRestarting
from llm_engine.stats import EngineStats

from llm_stack_server.app import create_app
from llm_stack_server.connection_limit import connections_for
from llm_stack_server.console import say
from llm_stack_server.context import Context, Shared
from llm_stack_server.engine_port import Engine
from llm_stack_server.errors import StartupError
from llm_stack_server.event_loop import either
from llm_stack_server.http_server import HttpServer
from llm_stack_server.listening import url_of
from llm_stack_server.observing.outlets import Outlets
from llm_stack_server.settings import ServerSettings
from llm_stack_server.tls import Tls

if TYPE_CHECKING:
    from llm_stack_server.grpc_api.server import GrpcServer

_HEALTH_INTERVAL_S = 0.5
_HEARTBEAT_INTERVAL_S = 5.0
_STALL_S = 60.0  # longer than any step should take, on a loaded CPU too
_DEATH_GRACE_S = (
    5.0  # answers 503 for so long after the engine died, then exits for a supervisor to restart it
)
_FLUSH_S = 2.0  # for the last error events after the engine was shut down
_STDERR = 2  # the file descriptor


class EngineSource(Protocol):
    """Where the engine comes from."""

    @property
    def model(self) -> str:
        """What it runs, as the user named it."""
        ...

    async def start(self) -> Engine:
        """The engine, ready.

        Raises:
            llm_engine.errors.EngineError: It could not start.
        """
        ...

    def serving(self, names: tuple[str, ...], engine: Engine) -> None:
        """The engine is there and requests are taken, for a model of these names."""
        ...


class Serving:
    """One run of a front end.

    Args:
        settings: The server's options.
        listener: The socket; others accept there too where there is something shared.
        source: Where the engine comes from.
        tls: The certificate, or None.
        shared: What it has in common with other front ends; None: it is alone and tells of the engine.
        say: Tells the user a line.
    """

    def __init__(
        self,
        settings: ServerSettings,
        listener: socket.socket,
        source: EngineSource,
        *,
        tls: Tls | None = None,
        shared: Shared | None = None,
        say: Callable[[str], None] = say,
    ) -> None:
        self._settings = settings
        self._listener = listener
        self._source = source
        self._tls = tls
        self._say = say
        self._is_alone = shared is None  # else a supervisor tells of the engine, once for all
        self._url = url_of(listener, is_tls=tls is not None)
        app = create_app(settings, shared=shared)
        self.context: Context = app.state.context
        self._http = HttpServer(
            app,
            tls,
            is_shared=shared is not None,
            max_connections=connections_for(settings.max_connections),
            on_refusal=self.context.metrics.refused.labels("too_many_connections").inc,
        )
        self._grpc: GrpcServer | None = None
        self._stop = asyncio.Event()
        self._stop_now = asyncio.Event()

    async def run(self) -> int:
        """Serve; the exit code."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.stop)
        loop.add_signal_handler(signal.SIGHUP, self.reload)
        outlets = Outlets(self._settings, self.context.journal, self.context.metrics, _STDERR)
        http = asyncio.ensure_future(self._http.serve(sockets=[self._listener]))
        self._tell(f"listening on {self._url}, loading {self._source.model}")
        try:
            await self._start_grpc()
            return await self._with_engine()
        finally:
            if self._grpc is not None:
                await self._grpc.stop(0)
            self._http.should_exit = True
            self._http.force_exit = True
            await http
            outlets.close()

    async def _start_grpc(self) -> None:
        if self._settings.grpc_port is None:
            return
        try:
            from llm_stack_server.grpc_api.server import GrpcServer  # grpc is an extra
        except ImportError as error:
            raise StartupError(
                f"grpc_port: gRPC is not installed ({error}): install llm-stack-server[grpc]"
            ) from None
        self._grpc = GrpcServer(self.context)
        await self._grpc.start()
        self._say(f"listening for gRPC on {self._grpc.address}")

    def stop(self) -> None:
        """Drain; called again: end now."""
        (self._stop_now if self._stop.is_set() else self._stop).set()

    def reload(self) -> None:
        """Read the key file and the certificate again; a wrong one changes nothing."""
        keys = self.context.keys
        if keys.has_file:
            self._try_again("API keys", keys.reload)
        if self._tls is not None:
            self._try_again("certificate", self._tls.reload)
        if self._grpc is not None and self._tls is not None:
            self._try_again("certificate of gRPC", self._grpc.reload)
        if not keys.has_file and self._tls is None:
            self._say("SIGHUP: there is neither a key file nor a certificate to read again")

    def _try_again(self, what: str, reload: Callable[[], None]) -> None:
        try:
            reload()
        except StartupError as error:
            self._say(f"SIGHUP: {what} not read again, all stays as before: {error}")
        else:
            self._say(f"SIGHUP: {what} read again")

    async def _with_engine(self) -> int:
        engine = await self._start_engine()
        if engine is None:
            return 0 if self._stop.is_set() else 1
        try:
            self.context.lifecycle.attach(engine)
            self._source.serving(self.context.model_names(), engine)
            names = ", ".join(self.context.model_names())
            self._tell(f"ready: {names} on {self._url}, context of {engine.max_model_len} tokens")
            died = await either(self._watch(engine), self._stop.wait())
            if died:
                return await self._report_death(engine)
            await self._drain()
            return 0
        finally:
            await engine.shutdown()
            await self.context.lifecycle.wait_idle(_FLUSH_S)

    async def _start_engine(self) -> Engine | None:
        """The engine; None where it failed (told to the user) or a signal came first."""
        starting = asyncio.ensure_future(self._source.start())
        stopping = asyncio.ensure_future(self._stop.wait())
        await asyncio.wait({starting, stopping}, return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if not starting.done():
            starting.cancel()
            await asyncio.gather(starting, return_exceptions=True)
            return None
        try:
            return starting.result()
        except EngineError as error:
            self._tell(f"error: {error}")
            return None

    def _tell(self, line: str) -> None:
        """Say what concerns the whole server."""
        if self._is_alone:
            self._say(line)

    async def _watch(self, engine: Engine) -> None:
        """Return when the engine is gone for good; meanwhile prove that its loop turns, tell of restarts."""
        heartbeat = asyncio.ensure_future(self._heartbeat(engine))
        before = engine.state
        try:
            while True:
                await asyncio.sleep(_HEALTH_INTERVAL_S)
                now = engine.state
                if now.phase == "dead":
                    return
                if now.deaths > before.deaths:
                    waiting = self.context.lifecycle.in_flight
                    self._tell(f"error: {now.reason}; starting it again, {waiting} requests wait")
                if now.phase == "running" and now.generation > before.generation:
                    self._tell("the engine runs again; its requests go on")
                before = now
        finally:
            heartbeat.cancel()

    async def _heartbeat(self, engine: Engine) -> None:
        """A snapshot goes through the core's step loop, so it shows that the loop turns."""
        lifecycle = self.context.lifecycle
        with contextlib.suppress(EngineDead):  # `_watch` sees it too
            while True:
                stats = asyncio.ensure_future(engine.stats())
                try:
                    done, _ = await asyncio.wait({stats}, timeout=_STALL_S)
                    lifecycle.stalled = not done
                    with contextlib.suppress(EngineRestarting):
                        self._note(engine.state, await stats)
                finally:
                    stats.cancel()
                lifecycle.stalled = False
                await asyncio.sleep(_HEARTBEAT_INTERVAL_S)

    def _note(self, state: CoreState, stats: EngineStats) -> None:
        """Keep what the core has counted, lest it die before anyone asks."""
        shared = self.context.shared
        if shared is None:
            self.context.metrics.engine.note(state, stats)
        else:
            shared.metrics.note_core(state.generation, stats)

    async def _report_death(self, engine: Engine) -> int:
        self._tell(
            f"error: {engine.state.reason}; the engine is gone: answering 503 for a moment, then exiting"
        )
        await either(asyncio.sleep(_DEATH_GRACE_S), self._stop.wait())
        return 1

    async def _drain(self) -> None:
        lifecycle = self.context.lifecycle
        lifecycle.begin_drain()
        limit_s = self._settings.drain_timeout_s
        self._say(f"draining: {lifecycle.in_flight} requests in flight, at most {limit_s:g} s")
        await either(lifecycle.wait_idle(limit_s), self._stop_now.wait())
        if lifecycle.in_flight:
            self._say(f"ending {lifecycle.in_flight} requests that did not finish in time")
