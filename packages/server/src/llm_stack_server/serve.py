"""Runs a server from its first socket to its exit code: bind, load, serve, drain. Knows nothing of routes."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
import sys
from collections.abc import Callable, Coroutine, Iterator
from typing import TYPE_CHECKING, Any

import uvicorn
from llm_engine import EngineOptions
from llm_engine.errors import EngineDead, EngineError, EngineRestarting

from llm_stack_server.app import create_app
from llm_stack_server.context import Context
from llm_stack_server.engine_port import Engine
from llm_stack_server.errors import StartupError
from llm_stack_server.http_protocol import BoundedHeadProtocol
from llm_stack_server.listening import check_exposure, listen, url_of
from llm_stack_server.observing.outlets import Outlets
from llm_stack_server.settings import ServerSettings
from llm_stack_server.tls import Tls

if TYPE_CHECKING:
    from llm_stack_server.grpc_api.server import GrpcServer

_LOG = logging.getLogger("llm_stack_server")
_HEALTH_INTERVAL_S = 0.5
_HEARTBEAT_INTERVAL_S = 5.0
_STALL_S = 60.0  # longer than any step should take, on a loaded CPU too
_DEATH_GRACE_S = (
    5.0  # answers 503 for so long after the engine died, then exits for a supervisor to restart it
)
_FLUSH_S = 2.0  # for the last error events after the engine was shut down
_KEEP_ALIVE_S = 65
_STDERR = 2  # the file descriptor


def serve(settings: ServerSettings, options: EngineOptions) -> int:
    """Serve until SIGTERM or SIGINT.

    Returns:
        The exit code: 0 after a drain, 1 where the engine could not start or has died.

    Raises:
        StartupError: the port is taken, an option is wrong, or all would be open to other machines; nothing
            was loaded.
    """
    logging.basicConfig(
        stream=sys.stderr,
        level=settings.log_level.upper(),
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
    )
    tls = None
    if settings.tls_cert is not None:
        tls = Tls(settings.tls_cert, settings.tls_key, settings.tls_client_ca)
    listener = listen(settings.host, settings.port)
    check_exposure(listener, is_open=settings.is_open(), allow_open=settings.allow_open)
    with contextlib.closing(listener), asyncio.Runner(loop_factory=_loop_factory()) as runner:
        return runner.run(Serving(settings, options, listener, tls).run())


class _Http(uvicorn.Server):
    """uvicorn without its signal handlers: `Serving` decides when to stop."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave the signals alone."""
        yield


class Serving:
    """One run of the server."""

    def __init__(
        self,
        settings: ServerSettings,
        options: EngineOptions,
        listener: socket.socket,
        tls: Tls | None = None,
    ) -> None:
        self._settings = settings
        self._options = options
        self._listener = listener
        self._tls = tls
        self._url = url_of(listener, is_tls=tls is not None)
        app = create_app(settings)
        self._context: Context = app.state.context
        self._http = _Http(
            uvicorn.Config(
                app,
                http=BoundedHeadProtocol,
                ws="none",
                lifespan="off",
                log_config=None,
                log_level="warning",
                access_log=False,  # ours is of the application: `observing.access_log`
                timeout_keep_alive=_KEEP_ALIVE_S,
                server_header=False,
                proxy_headers=False,  # nothing here goes by the client's address
                ssl_context_factory=None if tls is None else lambda _config, _default: tls.context,
            )
        )
        self._grpc: GrpcServer | None = None
        self._stop = asyncio.Event()
        self._stop_now = asyncio.Event()

    async def run(self) -> int:
        """Serve; the exit code."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal)
        loop.add_signal_handler(signal.SIGHUP, self._reload)
        outlets = Outlets(self._settings, self._context.journal, self._context.metrics, _STDERR)
        http = asyncio.ensure_future(self._http.serve(sockets=[self._listener]))
        _say(f"listening on {self._url}, loading {self._options.model}")
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
        self._grpc = GrpcServer(self._context)
        await self._grpc.start()
        _say(f"listening for gRPC on {self._grpc.address}")

    def _on_signal(self) -> None:
        (self._stop_now if self._stop.is_set() else self._stop).set()

    def _reload(self) -> None:
        """Read the key file and the certificate again; a wrong one changes nothing."""
        keys = self._context.keys
        if keys.has_file:
            self._try_again("API keys", keys.reload)
        if self._tls is not None:
            self._try_again("certificate", self._tls.reload)
        if self._grpc is not None and self._tls is not None:
            self._try_again("certificate of gRPC", self._grpc.reload)
        if not keys.has_file and self._tls is None:
            _say("SIGHUP: there is neither a key file nor a certificate to read again")

    def _try_again(self, what: str, reload: Callable[[], None]) -> None:
        try:
            reload()
        except StartupError as error:
            _say(f"SIGHUP: {what} not read again, all stays as before: {error}")
        else:
            _say(f"SIGHUP: {what} read again")

    async def _with_engine(self) -> int:
        engine = await self._start_engine()
        if engine is None:
            return 0 if self._stop.is_set() else 1
        try:
            self._context.lifecycle.attach(engine)
            names = ", ".join(self._context.model_names())
            _say(f"ready: {names} on {self._url}, context of {engine.max_model_len} tokens")
            died = await _either(self._watch(engine), self._stop.wait())
            if died:
                return await self._report_death(engine)
            await self._drain()
            return 0
        finally:
            await engine.shutdown()
            await self._context.lifecycle.wait_idle(_FLUSH_S)

    async def _start_engine(self) -> Engine | None:
        """The engine; None where it failed (told to the user) or a signal came first."""
        from llm_engine import start_engine  # heavy: only once the port is ours
        from llm_engine.core.core_state import RestartPolicy

        restart = RestartPolicy(max_deaths=self._settings.max_core_deaths)
        starting = asyncio.ensure_future(start_engine(self._options, restart))
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
            _say(f"error: {error}")
            return None

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
                    waiting = self._context.lifecycle.in_flight
                    _say(f"error: {now.reason}; starting it again, {waiting} requests wait")
                if now.phase == "running" and now.generation > before.generation:
                    _say("the engine runs again; its requests go on")
                before = now
        finally:
            heartbeat.cancel()

    async def _heartbeat(self, engine: Engine) -> None:
        """A snapshot goes through the core's step loop, so it shows that the loop turns."""
        lifecycle = self._context.lifecycle
        with contextlib.suppress(EngineDead):  # `_watch` sees it too
            while True:
                stats = asyncio.ensure_future(engine.stats())
                done, _ = await asyncio.wait({stats}, timeout=_STALL_S)
                lifecycle.stalled = not done
                with contextlib.suppress(EngineRestarting):
                    self._context.metrics.engine.note(engine.state, await stats)
                lifecycle.stalled = False
                await asyncio.sleep(_HEARTBEAT_INTERVAL_S)

    async def _report_death(self, engine: Engine) -> int:
        _say(f"error: {engine.state.reason}; the engine is gone: answering 503 for a moment, then exiting")
        await _either(asyncio.sleep(_DEATH_GRACE_S), self._stop.wait())
        return 1

    async def _drain(self) -> None:
        lifecycle = self._context.lifecycle
        lifecycle.begin_drain()
        limit_s = self._settings.drain_timeout_s
        _say(f"draining: {lifecycle.in_flight} requests in flight, at most {limit_s:g} s")
        await _either(lifecycle.wait_idle(limit_s), self._stop_now.wait())
        if lifecycle.in_flight:
            _say(f"ending {lifecycle.in_flight} requests that did not finish in time")


async def _either(first: Coroutine[Any, Any, Any], second: Coroutine[Any, Any, Any]) -> bool:
    """Wait for one of the two and cancel the other; True where ``first`` ended (its errors are raised)."""
    tasks = [asyncio.ensure_future(first), asyncio.ensure_future(second)]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        if tasks[0].done():
            tasks[0].result()
            return True
        return False
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:  # not made for Windows
        return None
    return uvloop.new_event_loop


def _say(line: str) -> None:
    sys.stderr.write(f"llm-stack: {line}\n")
    sys.stderr.flush()
