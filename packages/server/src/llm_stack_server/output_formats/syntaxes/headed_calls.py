"""Calls with their name in front of the arguments: ``NAME<separator>{...}``."""

from __future__ import annotations

from dataclasses import dataclass

from llm_stack_server.output_formats.calls import Calls
from llm_stack_server.output_formats.json_text import Malformed, json_value
from llm_stack_server.output_formats.reader import Reader, Reading


@dataclass(frozen=True, slots=True)
class Heading:
    """How one syntax marks the parts of a call.

    Attributes:
        separator: Between the name and the arguments.
        kind_separator: Behind a word that stands before the name ("function"); "" where there is none.
        is_numbered: The name is ``functions.NAME:INDEX``.
        is_fenced: The arguments stand in a Markdown fence.
        id_separators: Further separators with a call id between them and the name, which is dropped.
    """

    separator: str
    kind_separator: str = ""
    is_numbered: bool = False
    is_fenced: bool = False
    id_separators: tuple[str, ...] = ()


def headed_call(reader: Reader, calls: Calls, heading: Heading) -> Reading[None]:
    """One call.

    Raises:
        Malformed: the separator or the arguments are missing.
    """
    if heading.kind_separator:
        yield from _text(reader, (heading.kind_separator,))
    name, marker = yield from _text(reader, (heading.separator, *heading.id_separators))
    if marker != heading.separator:
        yield from _text(reader, (heading.separator,))
    name = name.strip()
    if heading.is_numbered:
        name = name.removeprefix("functions.").rpartition(":")[0] or name.removeprefix("functions.")
    if not name:
        raise Malformed("a call without a name")
    if heading.is_fenced:
        yield from _text(reader, ("```json\n", "```\n", "```json"))
    calls.start(name)
    yield from json_value(reader, calls.arguments)
    calls.end()
    if heading.is_fenced:
        yield from reader.skip_space()
        yield from reader.accept("```")


def _text(reader: Reader, ends: tuple[str, ...]) -> Reading[tuple[str, str]]:
    parts: list[str] = []
    end = yield from reader.until(ends, parts.append)
    if end is None:
        raise Malformed("the text ends within the head of a call")
    return "".join(parts), end
