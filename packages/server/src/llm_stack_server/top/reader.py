"""Asks a server how it is. Never raises for a server that is away: that is one of the answers."""

from __future__ import annotations

import http.client
import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import urlsplit

from llm_stack_server.errors import StartupError
from llm_stack_server.top.samples import NotMetrics, Samples

State = Literal["ready", "starting", "restarting", "stalled", "draining", "dead", "down", "refused"]
_STATES: dict[str, State] = {
    "starting": "starting",
    "engine_restarting": "restarting",
    "engine_stalled": "stalled",
    "engine_dead": "dead",
    "draining": "draining",
}
_TIMEOUT_S = 3.0
_MAX_BYTES = 16 * 2**20
_OK, _UNAUTHORIZED, _FORBIDDEN = 200, 401, 403


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """How the server was at one moment.

    Attributes:
        time_s: When, by a clock that never goes back.
        state: What it is doing; "down" where it does not answer, "refused" where it wants another key.
        detail: The reason, for a person; "" while it is ready.
        model: The name under which it serves its model; "" where it is not known yet.
        version: Its version; "" where it is not known yet.
        samples: Its metrics; None where there are none to be had.
    """

    time_s: float
    state: State
    detail: str = ""
    model: str = ""
    version: str = ""
    samples: Samples | None = None


@dataclass(frozen=True, slots=True)
class _Answer:
    status: int
    body: bytes

    def json(self) -> Any:  # noqa: ANN401 -- whatever the server sent
        try:
            return json.loads(self.body)
        except ValueError:
            return None

    def error(self) -> tuple[str, str]:
        """Code and message of an error in OpenAI's shape."""
        body = self.json()
        error = body.get("error") if isinstance(body, dict) else None
        if not isinstance(error, dict):
            return "", f"status {self.status}"
        return str(error.get("code") or ""), str(error.get("message") or f"status {self.status}")


class Reader:
    """Reads one server, again and again."""

    def __init__(self, url: str, api_key: str = "", clock: Callable[[], float] = time.monotonic) -> None:
        """Read the server at ``url``.

        Raises:
            StartupError: ``url`` is no URL of http or https.
        """
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise StartupError(f"url: must begin with http:// or https:// and name a host, got {url[:200]!r}")
        self.url = url.rstrip("/").removesuffix("/v1")
        self._headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
        self._clock = clock
        self._model = self._version = ""
        # Without the proxies of the environment: it is this machine, or one that was named.
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def read(self) -> Reading:
        """How the server is now."""
        now_s = self._clock()
        try:
            ready = self._get("/health/ready")
            metrics = self._get("/metrics")
        except (OSError, http.client.HTTPException) as error:
            self._model = self._version = ""  # another one may come
            return Reading(time_s=now_s, state="down", detail=_reason(error))
        state, detail = self._state(ready)
        if metrics.status in (_UNAUTHORIZED, _FORBIDDEN):
            return Reading(time_s=now_s, state="refused", detail=metrics.error()[1])
        try:
            samples = Samples.parse(metrics.body.decode(errors="replace")) if metrics.status == _OK else None
        except NotMetrics as error:
            return Reading(time_s=now_s, state="down", detail=str(error))
        self._learn_names()
        return Reading(
            time_s=now_s,
            state=state,
            detail=detail,
            model=self._model,
            version=self._version,
            samples=samples,
        )

    def _state(self, ready: _Answer) -> tuple[State, str]:
        if ready.status == _OK:
            return "ready", ""
        code, message = ready.error()
        return _STATES.get(code, "down"), message

    def _learn_names(self) -> None:
        try:
            if not self._version:
                version = self._get("/version").json()
                self._version = str(version.get("version", "")) if isinstance(version, dict) else ""
            if not self._model:
                models = self._get("/v1/models").json()
                cards = models.get("data") if isinstance(models, dict) else None
                self._model = ", ".join(str(card["id"]) for card in cards or ())
        except (OSError, http.client.HTTPException, KeyError, TypeError):
            return  # the next reading tries again

    def _get(self, path: str) -> _Answer:
        request = urllib.request.Request(self.url + path, headers=self._headers)  # noqa: S310 -- http(s) alone
        try:
            with self._opener.open(request, timeout=_TIMEOUT_S) as response:
                return _Answer(response.status, response.read(_MAX_BYTES))
        except urllib.error.HTTPError as error:
            with error:
                return _Answer(error.code, error.read(_MAX_BYTES))


def _reason(error: Exception) -> str:
    """``connection refused`` rather than a class and a number."""
    cause = error.reason if isinstance(error, urllib.error.URLError) else error
    if isinstance(cause, OSError) and cause.strerror:
        return cause.strerror.lower()
    return str(cause) or type(cause).__name__
