"""What a format of answers is made of: data that the parser reads."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from llm_stack_server.output_formats.calls import Calls
from llm_stack_server.output_formats.reader import Reader, Reading
from llm_stack_server.output_formats.sinks import TextSink

CallSyntax: TypeAlias = Callable[[Reader, Calls], Reading[None]]
AnswerSyntax: TypeAlias = Callable[[Reader, Calls, TextSink, TextSink], Reading[None]]


@dataclass(frozen=True, slots=True)
class Section:
    """Tool calls between marks.

    Attributes:
        start: The mark before them.
        read: Reads the calls behind it.
        ends: Marks that may follow them, any of which is read too.
    """

    start: str
    read: CallSyntax
    ends: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Bare:
    """Calls without a mark, which only the start of an answer can be.

    Attributes:
        first: The characters that they can begin with.
        read: Reads them.
    """

    first: str
    read: CallSyntax


@dataclass(frozen=True, slots=True, kw_only=True)
class DemandedCalls:
    """How calls are written where they are demanded: JSON objects of a name and arguments, with these texts.

    Attributes:
        before: Before the first call.
        call_start: Before each call's object.
        call_end: Behind it.
        separator: Between two calls.
        behind: Behind the last call.
        name_key: The key of the tool's name.
        arguments_key: The key of its arguments.
    """

    before: str = ""
    call_start: str = ""
    call_end: str = ""
    separator: str = ", "
    behind: str = ""
    name_key: str = "name"
    arguments_key: str = "arguments"


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """How one family of models marks reasoning and tool calls.

    Attributes:
        name: What ``--output-format`` calls it.
        families: The models that write it, for the documentation.
        reasoning: The marks around thinking; None where the family does not think aloud.
        sections: Tool calls with marks.
        bare: Tool calls without, or None.
        layout: Marks around sections or text that say nothing.
        thinking_end: What to write so that the thinking ends, where it is more than its mark.
        calls_end_reasoning: A tool call may follow thinking that was not closed.
        answer: Reads whole answers, in place of all above; None for most.
        demanded: How a call is written where ``tool_choice`` demands one; None: it cannot be demanded.
        short_call_ids: The template takes call ids of nine letters and digits only.
        signs: Texts that a chat template of this format holds: all of one tuple.
    """

    name: str
    families: str
    reasoning: tuple[str, str] | None = None
    sections: tuple[Section, ...] = ()
    bare: Bare | None = None
    layout: tuple[str, ...] = ()
    thinking_end: str = ""
    calls_end_reasoning: bool = False
    answer: AnswerSyntax | None = None
    demanded: DemandedCalls | None = None
    short_call_ids: bool = False
    signs: tuple[tuple[str, ...], ...] = ()

    @property
    def forced_end(self) -> str:
        """What ends the thinking when it is put behind it; "" where the family does not think."""
        if self.thinking_end or self.reasoning is None:
            return self.thinking_end
        end = self.reasoning[1]
        return f"\n{end}\n\n" if end.startswith("</") else end

    @property
    def writes_calls(self) -> bool:
        """Whether the family writes tool calls."""
        return bool(self.sections or self.bare or self.answer)
