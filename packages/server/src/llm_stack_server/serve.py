"""Runs a server from its first socket to its exit code: bind, then one front end or several."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys

from llm_engine import EngineOptions
from llm_engine.core.core_state import RestartPolicy

from llm_stack_server.engine_port import Engine
from llm_stack_server.event_loop import loop_factory
from llm_stack_server.listening import check_exposure, listen, url_of
from llm_stack_server.settings import ServerSettings
from llm_stack_server.tls import Tls


def serve(settings: ServerSettings, options: EngineOptions) -> int:
    """Serve until SIGTERM or SIGINT.

    Returns:
        The exit code: 0 after a drain, 1 where the engine could not start or has died, or where front ends
        died too often.

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
    with contextlib.closing(listener), asyncio.Runner(loop_factory=loop_factory()) as runner:
        if settings.api_workers > 1:
            from llm_stack_server.supervisor.supervisor import Supervisor

            url = url_of(listener, is_tls=tls is not None)
            return runner.run(Supervisor(settings, options, listener, url).run())
        from llm_stack_server.serving import Serving  # a supervisor needs no web stack

        source = _HostedEngine(options, RestartPolicy(max_deaths=settings.max_core_deaths))
        return runner.run(Serving(settings, listener, source, tls=tls).run())


class _HostedEngine:
    """An engine whose host lives in this process. Implements `serving.EngineSource`."""

    def __init__(self, options: EngineOptions, restart: RestartPolicy) -> None:
        self._options = options
        self._restart = restart

    @property
    def model(self) -> str:
        """What it runs."""
        return self._options.model

    async def start(self) -> Engine:
        """Start it."""
        from llm_engine import start_engine  # heavy: only once the port is ours

        return await start_engine(self._options, self._restart)

    def serving(self, names: tuple[str, ...], engine: Engine) -> None:
        """Nobody else is to know."""
