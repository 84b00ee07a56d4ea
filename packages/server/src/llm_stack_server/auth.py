"""Guards every route but the probes with API keys. Knows nothing of what the routes do."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable

from starlette.requests import Request

from llm_stack_server.asgi import App, Receive, Scope, Send
from llm_stack_server.errors import ApiError, StartupError
from llm_stack_server.http_errors import error_response

KEY_STATE = "api_key_digest"
OPEN_PATHS = frozenset({"/health", "/health/live", "/health/ready"})


class ApiKeyMiddleware:
    """Answers 401 unless one of the keys comes as ``Authorization: Bearer KEY`` or ``x-api-key: KEY``.

    Without keys, all is open.
    """

    def __init__(self, app: App, keys: Iterable[str] = ()) -> None:
        self._app = app
        # Digests have one length, so the comparison tells nothing of a key's length either.
        self._digests = [_digest(key.encode()) for key in checked_keys(keys)]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or answer 401."""
        if scope["type"] != "http" or scope["path"] in OPEN_PATHS or not self._digests:
            await self._app(scope, receive, send)
            return
        digest = self._digest_given(scope)
        if digest is not None:
            scope["state"] = {**scope.get("state", {}), KEY_STATE: digest.hex()}
            await self._app(scope, receive, send)
            return
        error = ApiError(
            401,
            "missing or wrong API key; send it as 'Authorization: Bearer KEY' or as 'x-api-key: KEY'",
            error_type="authentication_error",
            code="invalid_api_key",
            headers={"www-authenticate": "Bearer"},
        )
        await error_response(error, scope["path"])(scope, receive, send)

    def _digest_given(self, scope: Scope) -> bytes | None:
        """The digest of the key that the request carries; None where it carries none of ours."""
        given = [_digest(_bearer_token(scope)), _digest(_header(scope, b"x-api-key"))]
        # Every key, no early exit.
        matches = [one for one in given for digest in self._digests if hmac.compare_digest(one, digest)]
        return matches[0] if matches else None


def key_of(request: Request) -> str:
    """The digest of the API key that the request came with; "" where the server has no keys."""
    return str(getattr(request.state, KEY_STATE, ""))


def checked_keys(keys: Iterable[str]) -> list[str]:
    """The keys, stripped; `StartupError` for an empty one, which would look like protection and be none."""
    stripped = [key.strip() for key in keys]
    if not all(stripped):
        raise StartupError("an API key is empty")
    return stripped


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()


def _bearer_token(scope: Scope) -> bytes:
    scheme, _, token = _header(scope, b"authorization").partition(b" ")
    return token.strip() if scheme.lower() == b"bearer" else b""


def _header(scope: Scope, wanted: bytes) -> bytes:
    return next((bytes(value) for name, value in scope["headers"] if name == wanted), b"")
