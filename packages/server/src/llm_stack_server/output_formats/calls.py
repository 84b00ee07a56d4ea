"""Where syntaxes of tool calls put what they read: calls in order, arguments as JSON text."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from llm_stack_server.output_formats.argument_types import typed_argument
from llm_stack_server.output_formats.events import Arguments, CallEnd, CallStart, OutputEvent

Emit = Callable[[OutputEvent], None]


@dataclass(frozen=True, slots=True)
class Tools:
    """The tools of a request: JSON schemas of their parameters, by name."""

    parameters: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def __contains__(self, name: object) -> bool:
        return name in self.parameters

    def value(self, name: str, key: str, text: str) -> object:
        """What ``text`` stands for as the argument ``key`` of a tool, by its schema."""
        return typed_argument(self.parameters.get(name, {}), key, text)


class Calls:
    """Numbers the calls of one answer and tells of them. One is open at a time."""

    def __init__(self, emit: Emit, tools: Tools) -> None:
        self.tools = tools
        self.count = 0
        self._emit = emit
        self._is_open = False

    @property
    def is_open(self) -> bool:
        """Whether a call has begun and not ended."""
        return self._is_open

    def start(self, name: str) -> None:
        """A call of ``name`` begins."""
        self._emit(CallStart(self.count, name))
        self._is_open = True

    def arguments(self, text: str) -> None:
        """More of the open call's arguments, as JSON text."""
        self._emit(Arguments(self.count, text))

    def end(self) -> None:
        """The open call is whole."""
        self._emit(CallEnd(self.count))
        self.give_up()

    def give_up(self) -> None:
        """The open call ends unfinished."""
        self._is_open = False
        self.count += 1

    def whole(self, name: str, arguments: object) -> None:
        """A call that was read at once."""
        self.start(name)
        self.arguments(json.dumps(arguments, ensure_ascii=False))
        self.end()
