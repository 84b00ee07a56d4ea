"""Answers of models without a known format: all is text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from llm_stack_server.output_formats.events import OutputEvent, Text


class AnswerReader(Protocol):
    """Reads one answer piece by piece: `OutputParser`, or `PlainText`."""

    @property
    def num_calls(self) -> int:
        """Calls begun so far."""
        ...

    @property
    def is_thinking(self) -> bool:
        """Whether the text so far ends within the model's thinking."""
        ...

    def feed(self, text: str) -> Sequence[OutputEvent]:
        """What one more piece tells."""
        ...

    def finish(self) -> Sequence[OutputEvent]:
        """What the end of the text tells."""
        ...


class PlainText:
    """Hands text on as it comes."""

    num_calls = 0
    is_thinking = False

    def feed(self, text: str) -> Sequence[OutputEvent]:
        """The text."""
        return (Text(text),) if text else ()

    def finish(self) -> Sequence[OutputEvent]:
        """Nothing is left."""
        return ()
