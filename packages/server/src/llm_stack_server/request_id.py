"""The name of a request in ``x-request-id``. It is for logs only: the engine gets an id of our own."""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterable

_HEADER = b"x-request-id"
_SAFE = re.compile(rb"[A-Za-z0-9_.:\-]{1,128}")


def request_id_for(headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    """The id that a client sent, where it is harmless; else a new one."""
    for name, value in headers:
        if name == _HEADER and _SAFE.fullmatch(value):
            return bytes(value)
    return uuid.uuid4().hex.encode()
