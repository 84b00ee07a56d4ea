"""Events of which only a text changes: they are JSON already but for it. Knows no answer format."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import msgspec

_MARK = "\0text\0"  # in no name of a model, and in no id


class TextTemplate:
    """The JSON of an event around one of its texts; most events of a stream differ in nothing else."""

    def __init__(self, event_of: Callable[[str], dict[str, Any]]) -> None:
        """``event_of`` makes the event for a text, which it must hold once and as it is."""
        data = json.dumps(event_of(_MARK), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        self._head, self._tail = (part.encode() for part in data.split(json.dumps(_MARK)))
        self._encode = msgspec.json.Encoder().encode

    def fill(self, text: str) -> bytes:
        """The event with this text."""
        return self._head + self._encode(text) + self._tail
