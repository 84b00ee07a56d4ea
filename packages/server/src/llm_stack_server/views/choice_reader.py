"""One choice of an answer as events: text, reasoning, calls with their ids. All answer formats read it."""

from __future__ import annotations

import secrets
from collections.abc import Sequence

from llm_engine.outputs import RequestDelta

from llm_stack_server.generation import Usage
from llm_stack_server.output_formats.events import Arguments, CallEnd, CallStart, OutputEvent
from llm_stack_server.output_formats.plain import AnswerReader

_SHORT_ID_CHARS = 9


class ChoiceReader:
    """Reads the deltas of one choice, in order."""

    def __init__(
        self, reader: AnswerReader, usage: Usage, *, single_call: bool = False, short_call_ids: bool = False
    ) -> None:
        """Tokens of thinking are added to ``usage``."""
        self._reader = reader
        self._usage = usage
        self._single_call = single_call
        self._short_call_ids = short_call_ids
        self._call_ids: list[str] = []

    def read(self, delta: RequestDelta) -> Sequence[OutputEvent]:
        """What the delta tells; with the choice's last one also what was held back."""
        was_thinking = self._reader.is_thinking
        events = self._reader.feed(delta.text)
        if was_thinking or self._reader.is_thinking:
            self._usage.reasoning_tokens += len(delta.token_ids)
        if delta.finish_reason is not None:
            events = (*events, *self._reader.finish())
        return [event for event in events if self._is_shown(event)] if self._single_call else events

    def finish_reason(self, delta: RequestDelta) -> str | None:
        """Why the choice ended; "tool_calls" where it ended by itself and holds calls."""
        if delta.finish_reason == "stop" and self._reader.num_calls:
            return "tool_calls"
        return delta.finish_reason

    def call_id(self, call: int) -> str:
        """The id of a call, made up once."""
        while len(self._call_ids) <= call:
            new = secrets.token_hex(12)
            self._call_ids.append(new[:_SHORT_ID_CHARS] if self._short_call_ids else f"call_{new}")
        return self._call_ids[call]

    @staticmethod
    def _is_shown(event: OutputEvent) -> bool:
        return not (isinstance(event, CallStart | Arguments | CallEnd) and event.call > 0)
