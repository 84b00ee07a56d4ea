"""Accepts at a listening socket at which other processes accept too. Knows nothing of HTTP.

A web server's own loop would accept all that wait, so that one process would get a whole burst. This one
takes one connection each time its event loop turns: whoever has the least to do turns most often. As there is
one queue for all, none of the connections in it is lost when a process dies.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable

_LOG = logging.getLogger("llm_stack_server")
_PAUSE_S = 0.5  # after an error such as too many open files


class SharedListener:
    """One process's hold on the socket.

    Args:
        listener: The socket; not blocking.
        make_protocol: Makes what speaks on a connection.
        context: For TLS, or None.
    """

    def __init__(
        self,
        listener: socket.socket,
        make_protocol: Callable[[], asyncio.Protocol],
        context: ssl.SSLContext | None,
    ) -> None:
        self._listener = listener
        self._make_protocol = make_protocol
        self._context = context
        self._beginning: set[asyncio.Task[None]] = set()
        self._resuming: asyncio.TimerHandle | None = None

    def open(self) -> None:
        """Begin to accept."""
        self._resuming = None
        asyncio.get_running_loop().add_reader(self._listener.fileno(), self._accept)

    def close(self) -> None:
        """Accept no more. What waits is left to the others."""
        if self._resuming is not None:
            self._resuming.cancel()
        asyncio.get_running_loop().remove_reader(self._listener.fileno())

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            return  # another process was faster, or the client has left
        except OSError as error:
            _LOG.error("cannot accept a connection: %s", error)
            loop = asyncio.get_running_loop()
            loop.remove_reader(self._listener.fileno())
            self._resuming = loop.call_later(_PAUSE_S, self.open)
            return
        connection.setblocking(False)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        task = asyncio.ensure_future(self._begin(connection))
        self._beginning.add(task)
        task.add_done_callback(self._beginning.discard)

    async def _begin(self, connection: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        try:
            await loop.connect_accepted_socket(self._make_protocol, connection, ssl=self._context)
        except OSError as error:  # among them those of TLS
            _LOG.debug("a connection did not come about: %s", error)
            connection.close()
