"""Keeps web pages that the user did not choose away from a server without keys. Knows no routes.

A page can send requests to the user's own machine, and by a name that it points there (DNS rebinding) it can
even read the answers. With keys neither works, since a page does not know them.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Collection

from llm_stack_server.asgi import App, Receive, Scope, Send
from llm_stack_server.auth import OPEN_PATHS
from llm_stack_server.errors import ApiError
from llm_stack_server.http_errors import error_response
from llm_stack_server.keys import KeyRing

ANY_ORIGIN = "*"


class BrowserGuard:
    """While there are no keys: answers 403 to foreign origins, and on loopback to foreign host names."""

    def __init__(self, app: App, keys: KeyRing, origins: Collection[str], hosts: Collection[str]) -> None:
        """Guard ``app``.

        Args:
            app: What is guarded.
            keys: With any key, all is let through.
            origins: Origins of web pages that may send requests; "*" for all.
            hosts: Host names other than those of loopback by which the server may be called there.
        """
        self._app = app
        self._keys = keys
        self._origins = frozenset(origins)
        self._hosts = frozenset(host.lower() for host in hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or answer 403."""
        error = None
        if scope["type"] == "http" and not len(self._keys) and scope["path"] not in OPEN_PATHS:
            error = self._fault(scope)
        if error is None:
            await self._app(scope, receive, send)
        else:
            await error_response(error, scope)(scope, receive, send)

    def _fault(self, scope: Scope) -> ApiError | None:
        host = _header(scope, b"host")
        origin = _header(scope, b"origin")
        if _is_loopback((scope.get("server") or ("",))[0]) and not self._is_our_name(host):
            return ApiError(
                403,
                f"the host name {host[:100]!r} is not one of this server's; see --allowed-host",
                error_type="permission_error",
                code="host_not_allowed",
            )
        if origin and not self._is_our_origin(origin, host):
            return ApiError(
                403,
                f"web pages of {origin[:100]!r} may not use this server; see --cors-origin",
                error_type="permission_error",
                code="origin_not_allowed",
            )
        return None

    def _is_our_name(self, host: str) -> bool:
        name = _without_port(host)
        return name == "localhost" or name in self._hosts or _is_loopback(name)

    def _is_our_origin(self, origin: str, host: str) -> bool:
        if ANY_ORIGIN in self._origins or origin in self._origins:
            return True
        return origin.partition("://")[2].lower() == host.lower() != ""


def _without_port(host: str) -> str:
    """``[::1]:80`` as ``::1``, ``LOCALHOST:80`` as ``localhost``."""
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0].lower()


def _is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False


def _header(scope: Scope, wanted: bytes) -> str:
    """The header's value; twice the same header is never one of ours."""
    values = [value.decode("latin-1") for name, value in scope["headers"] if name == wanted]
    return values[0] if len(values) == 1 else " ".join(values)
