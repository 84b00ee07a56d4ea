"""Binds the server's socket, before anything costly is done. Knows nothing of HTTP."""

from __future__ import annotations

import errno
import ipaddress
import socket

from llm_stack_server.errors import StartupError

_BACKLOG = 2048


def listen(host: str, port: int) -> socket.socket:
    """A listening TCP socket.

    Raises:
        StartupError: the port is taken, or the address is not ours; the message names them.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except socket.gaierror as error:
        raise StartupError(f"cannot resolve host {host!r}: {error.strerror}") from None
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            raise StartupError(f"port {port} on {host} is already in use") from None
        raise StartupError(f"cannot listen on {host} port {port}: {error.strerror}") from None
    listener.setblocking(False)
    return listener


def check_exposure(listener: socket.socket, *, is_open: bool, allow_open: bool) -> None:
    """Refuse to serve other machines without any protection, unless the user says so.

    Raises:
        StartupError: the address is not a loopback one, all is open, and nobody allowed that. The listener
            is closed.
    """
    host = listener.getsockname()[0]
    if not is_open or allow_open or ipaddress.ip_address(host).is_loopback:
        return
    listener.close()
    raise StartupError(
        f"{host} can be reached from other machines and there are no API keys: give --api-key-file, "
        "or --allow-open to serve anyone"
    )


def url_of(listener: socket.socket, *, is_tls: bool = False) -> str:
    """The address as a URL."""
    scheme = "https" if is_tls else "http"
    host, port = listener.getsockname()[:2]
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"
