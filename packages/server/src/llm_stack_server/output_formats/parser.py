"""The incremental parser of answers: feed pieces of text, take events. One object reads one answer.

The joined events do not depend on where the text was cut.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

from llm_stack_server.output_formats.calls import Calls, Tools
from llm_stack_server.output_formats.events import CallEnd, CallStart, OutputEvent, Reasoning, Text
from llm_stack_server.output_formats.format import Format, Section
from llm_stack_server.output_formats.json_text import Malformed
from llm_stack_server.output_formats.reader import Reader, Reading
from llm_stack_server.output_formats.sinks import TextSink


class Thinking(Enum):
    """How the prompt leaves the model: within its thinking, behind it, or free to begin it."""

    OPEN = "open"
    CLOSED = "closed"
    FREE = "free"


def thinking_after(output_format: Format, prompt: str) -> Thinking:
    """What the end of a rendered prompt says.

    Args:
        output_format: Its reasoning marks count.
        prompt: The prompt's text; what follows the last turn's head decides.
    """
    if output_format.reasoning is None:
        return Thinking.CLOSED
    start, end = output_format.reasoning
    tail = prompt.rstrip()
    if tail.endswith(start.rstrip()):
        return Thinking.OPEN
    return Thinking.CLOSED if tail.endswith(end.rstrip()) else Thinking.FREE


class OutputParser:
    """Reads one answer.

    Text that looks like a call and is none comes out as text. A call that breaks off behind its name keeps
    the arguments that were there and has no `CallEnd`.
    """

    def __init__(self, output_format: Format, tools: Tools, thinking: Thinking = Thinking.FREE) -> None:
        self._format = output_format
        self._thinking = thinking
        self._events: list[OutputEvent] = []
        self._reader = Reader()
        self._calls = Calls(self._emit, tools)
        self._content = TextSink(self._emit, Text)
        self._reasoning = TextSink(self._emit, Reasoning)
        # Without tools, what looks like a call is text.
        sections = output_format.sections if tools.parameters else ()
        self._sections = {section.start: section for section in sections}
        self._markers = (*self._sections, *output_format.layout)
        self._reading = self._answer()
        self._done = False
        self._is_thinking = False

    @property
    def is_thinking(self) -> bool:
        """Whether the text so far ends within the model's thinking."""
        return self._is_thinking

    @property
    def num_calls(self) -> int:
        """Calls begun so far."""
        return self._calls.count + self._calls.is_open

    def feed(self, text: str) -> Sequence[OutputEvent]:
        """What one more piece tells."""
        self._reader.feed(text)
        return self._advance()

    def finish(self) -> Sequence[OutputEvent]:
        """What the end of the text tells."""
        self._reader.end()
        return self._advance()

    def _advance(self) -> Sequence[OutputEvent]:
        if not self._done:
            self._done = next(self._reading, self) is self
        events, self._events = self._events, []
        return events

    def _emit(self, event: OutputEvent) -> None:
        if self._format.answer is not None:  # else `_thought` knows
            self._is_thinking = isinstance(event, Reasoning)
        if isinstance(event, CallStart):
            self._reader.stop_record()
        elif isinstance(event, CallEnd):
            self._reader.start_record("")
        self._events.append(event)

    # The reading of an answer

    def _answer(self) -> Reading[None]:
        if self._format.answer is not None:
            yield from self._format.answer(self._reader, self._calls, self._content, self._reasoning)
        else:
            marker = yield from self._thought()
            if marker is None:
                yield from self._bare_calls()
            yield from self._marked(marker)
        if not self.num_calls:
            self._content.finish()

    def _thought(self) -> Reading[str | None]:
        """Thinking at the start; the section's mark where a call ended it."""
        marks = self._format.reasoning
        if marks is None or self._thinking is Thinking.CLOSED:
            return None
        start, end = marks
        self._reader.start_record("")
        yield from self._reader.skip_space()
        found = yield from self._reader.accept(start)
        before = self._reader.stop_record()
        if not found and self._thinking is Thinking.FREE:
            self._content.text(before)
            return None
        self._reasoning.skip_space()
        ends = (end, *self._sections) if self._format.calls_end_reasoning else (end,)
        self._is_thinking = True
        marker = yield from self._reader.until(ends, self._reasoning.text)
        self._is_thinking = False
        self._content.skip_space()
        return marker if marker != end else None

    def _bare_calls(self) -> Reading[None]:
        bare = self._format.bare
        if bare is None or not self._calls.tools.parameters:
            return
        self._reader.start_record("")
        yield from self._reader.skip_space()
        first = yield from self._reader.peek()
        if first and first in bare.first:
            yield from self._read_calls(Section("", bare.read))
        else:
            self._content.text(self._reader.stop_record())

    def _marked(self, marker: str | None) -> Reading[None]:
        """Text with sections in it, up to the end; ``marker`` was read already."""
        while True:
            if marker is not None and marker in self._sections:
                self._reader.start_record(marker)
                yield from self._read_calls(self._sections[marker])
            marker = yield from self._reader.until(self._markers, self._content.text)
            if marker is None:
                return

    def _read_calls(self, section: Section) -> Reading[None]:
        """The calls of a section, whose start was recorded."""
        try:
            yield from section.read(self._reader, self._calls)
        except Malformed:
            yield from self._broken(section)
            return
        self._reader.stop_record()
        self._content.skip_space()
        yield from self._reader.skip_space()
        for end in section.ends:
            if (yield from self._reader.accept(end)):
                return

    def _broken(self, section: Section) -> Reading[None]:
        """An open call keeps what stands up to the section's end; anything else was text."""
        if self._calls.is_open:
            yield from self._reader.until(section.ends, self._calls.arguments)
            self._calls.give_up()
            self._content.skip_space()
        else:
            self._content.text(self._reader.stop_record())
