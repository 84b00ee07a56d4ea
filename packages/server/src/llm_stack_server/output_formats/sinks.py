"""Streams of visible text. White space at an edge waits until it is known what follows."""

from __future__ import annotations

from collections.abc import Callable

from llm_stack_server.output_formats.events import OutputEvent, Reasoning, Text


class TextSink:
    """Text of one kind. White space at the end of a piece is told with the text behind it."""

    def __init__(self, emit: Callable[[OutputEvent], None], kind: type[Text | Reasoning]) -> None:
        self._emit = emit
        self._kind = kind
        self._held: list[str] = []
        self._drops_space = False

    def text(self, piece: str) -> None:
        """More text."""
        if self._drops_space:
            piece = piece.lstrip()
        body = piece.rstrip()
        if body:
            self._drops_space = False
            self._emit(self._kind("".join((*self._held, body))))
            self._held.clear()
        self._held.append(piece[len(body) :])

    def skip_space(self) -> None:
        """White space from here to the next text is layout; what is held stays, to part the two texts."""
        self._drops_space = True

    def finish(self) -> None:
        """Nothing follows: white space at the end is part of the text."""
        held = "".join(self._held)
        self._held.clear()
        if held:
            self._emit(self._kind(held))
