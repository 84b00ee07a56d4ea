"""Guards every route but the probes with API keys. Knows nothing of what the routes do."""

from __future__ import annotations

from collections.abc import Collection

from starlette.requests import Request

from llm_stack_server.asgi import App, Receive, Scope, Send
from llm_stack_server.errors import ApiError
from llm_stack_server.http_errors import error_response
from llm_stack_server.keys import ApiKey, KeyRing

KEY_STATE = "api_key"
OPEN_PATHS = frozenset({"/health", "/health/live", "/health/ready"})


class ApiKeyMiddleware:
    """Answers 401 unless one of the keys comes as ``Authorization: Bearer KEY`` or ``x-api-key: KEY``.

    Without keys, all is open.
    """

    def __init__(self, app: App, keys: KeyRing, open_paths: Collection[str] = ()) -> None:
        """Guard ``app``; the probes and ``open_paths`` need no key."""
        self._app = app
        self._keys = keys
        self._open_paths = OPEN_PATHS.union(open_paths)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or answer 401."""
        if scope["type"] != "http" or scope["path"] in self._open_paths or not len(self._keys):
            await self._app(scope, receive, send)
            return
        key = self._keys.find((_bearer_token(scope), _header(scope, b"x-api-key")))
        if key is not None:
            scope["state"] = {**scope.get("state", {}), KEY_STATE: key}
            await self._app(scope, receive, send)
            return
        error = ApiError(
            401,
            "missing or wrong API key; send it as 'Authorization: Bearer KEY' or as 'x-api-key: KEY'",
            error_type="authentication_error",
            code="invalid_api_key",
            headers={"www-authenticate": "Bearer"},
        )
        await error_response(error, scope)(scope, receive, send)


def api_key_of(scope: Scope) -> ApiKey | None:
    """The key that the request came with; None where the server has no keys."""
    key: ApiKey | None = scope.get("state", {}).get(KEY_STATE)
    return key


def key_of(request: Request) -> str:
    """The digest of the API key that the request came with; "" where the server has no keys."""
    key = api_key_of(request.scope)
    return "" if key is None else key.digest.hex()


def _bearer_token(scope: Scope) -> bytes:
    scheme, _, token = _header(scope, b"authorization").partition(b" ")
    return token.strip() if scheme.lower() == b"bearer" else b""


def _header(scope: Scope, wanted: bytes) -> bytes:
    return next((bytes(value) for name, value in scope["headers"] if name == wanted), b"")
