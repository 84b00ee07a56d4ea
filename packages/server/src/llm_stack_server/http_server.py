"""uvicorn as this server runs it: without its signal handlers, alone at its socket or beside others."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable, Iterator

import uvicorn

from llm_stack_server.asgi import App
from llm_stack_server.connection_limit import BoundedConfig, LimitedProtocol
from llm_stack_server.shared_listener import SharedListener
from llm_stack_server.tls import Tls

_KEEP_ALIVE_S = 65


class HttpServer(uvicorn.Server):
    """Serves until it is told to stop.

    Args:
        app: What answers.
        tls: The certificate, or None.
        is_shared: Whether other processes accept at the same socket.
        max_connections: How many clients may be connected.
        on_refusal: Called for each one that is refused.
    """

    def __init__(
        self,
        app: App,
        tls: Tls | None,
        *,
        is_shared: bool,
        max_connections: int,
        on_refusal: Callable[[], None],
    ) -> None:
        super().__init__(
            BoundedConfig(
                app,
                max_connections=max_connections,
                on_refusal=on_refusal,
                ws="none",
                lifespan="off",
                log_config=None,
                log_level="warning",
                access_log=False,  # ours is the application's: `observing.access_log`
                timeout_keep_alive=_KEEP_ALIVE_S,
                server_header=False,
                proxy_headers=False,  # nothing here goes by the client's address
                ssl_context_factory=None if tls is None else lambda _config, _default: tls.context,
            )
        )
        self._tls = tls
        self._is_shared = is_shared
        self._accepting: SharedListener | None = None

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave the signals alone: whoever runs it decides when to stop."""
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to accept."""
        if not self._is_shared or sockets is None:
            await super().startup(sockets)
            return
        await super().startup([])
        (listener,) = sockets
        context = None if self._tls is None else self._tls.context
        self._accepting = SharedListener(listener, self._protocol, context)
        self._accepting.open()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept no more, and end what there is."""
        if self._accepting is not None:
            self._accepting.close()
        await super().shutdown(sockets)

    def _protocol(self) -> asyncio.Protocol:
        return LimitedProtocol(
            config=self.config, server_state=self.server_state, app_state=self.lifespan.state
        )
