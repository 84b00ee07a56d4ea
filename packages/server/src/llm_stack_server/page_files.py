"""GET / and /page/{file}: the built-in web page. Its files hold no secret, so they need no key."""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import PurePosixPath

from fastapi import APIRouter, Request
from starlette.responses import Response

_FOLDER = "web_page"
_START = "index.html"
_MEDIA_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
# Code and style come from here alone, and no text can become either: with trusted types the browser itself
# refuses every sink that makes HTML of a string.
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)


@dataclass(frozen=True, slots=True)
class PageFile:
    """One file of the page, as it is sent."""

    body: bytes
    media_type: str
    etag: str


def page_files() -> Mapping[str, PageFile]:
    """The page's files by the path at which each is served."""
    found = {}
    for entry in files("llm_stack_server").joinpath(_FOLDER).iterdir():
        media_type = _MEDIA_TYPES.get(PurePosixPath(entry.name).suffix)
        if media_type is not None:
            body = entry.read_bytes()
            etag = f'"{hashlib.blake2s(body, digest_size=12).hexdigest()}"'
            path = "/" if entry.name == _START else f"/page/{entry.name}"
            found[path] = PageFile(body, media_type, etag)
    return found


def page_router(page: Mapping[str, PageFile]) -> APIRouter:
    """Routes that serve ``page`` from memory."""
    router = APIRouter()
    for path, file in page.items():
        router.add_api_route(path, _sender(file), methods=["GET", "HEAD"], include_in_schema=False)
    return router


def _sender(file: PageFile) -> Callable[[Request], Awaitable[Response]]:
    headers = {
        "content-security-policy": _POLICY,
        "cache-control": "no-cache",  # asked for again each time, so that page and server fit together
        "etag": file.etag,
        "cross-origin-opener-policy": "same-origin",
        "permissions-policy": "camera=(), microphone=(), geolocation=()",
    }

    async def send(request: Request) -> Response:
        if request.headers.get("if-none-match") == file.etag:
            return Response(status_code=304, headers=headers)
        return Response(file.body, media_type=file.media_type, headers=headers)

    return send
