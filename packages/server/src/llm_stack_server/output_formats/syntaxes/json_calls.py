"""Calls as JSON objects: ``{"name": ..., "arguments": {...}}``, alone or in a list."""

from __future__ import annotations

from collections.abc import Callable

from llm_stack_server.output_formats.calls import Calls
from llm_stack_server.output_formats.json_text import Malformed, json_string, json_value
from llm_stack_server.output_formats.reader import Reader, Reading, drop

_NAMES = frozenset({"name", "tool_name", "function"})
_ARGUMENTS = frozenset({"arguments", "parameters", "args"})


def json_call(reader: Reader, calls: Calls) -> Reading[None]:
    """One object. Arguments stream from the moment the name is known.

    Raises:
        Malformed: it is no such object.
    """
    yield from reader.skip_space()
    if not (yield from reader.accept("{")):
        raise Malformed("a call was expected")
    name: str | None = None
    early: list[str] = []
    has_arguments = False
    while not (yield from _at_end(reader, "}")):
        key = yield from json_string(reader)
        yield from reader.skip_space()
        if not (yield from reader.accept(":")):
            raise Malformed("a colon was expected")
        if key in _NAMES and name is None:
            name = yield from json_string(reader)
            calls.start(name)
            for text in early:
                calls.arguments(text)
        elif key in _ARGUMENTS and not has_arguments:
            has_arguments = True
            yield from _arguments(reader, early.append if name is None else calls.arguments)
        else:
            yield from json_value(reader, drop)
    if name is None:
        raise Malformed("a call without a name")
    if not has_arguments:
        calls.arguments("{}")
    calls.end()


def json_call_list(reader: Reader, calls: Calls) -> Reading[None]:
    """A list of objects, or one object.

    Raises:
        Malformed: it is neither.
    """
    yield from reader.skip_space()
    if not (yield from reader.accept("[")):
        yield from json_call(reader, calls)
        return
    while not (yield from _at_end(reader, "]")):
        yield from json_call(reader, calls)


def json_calls_in_a_row(reader: Reader, calls: Calls) -> Reading[None]:
    """Objects one after the other, with ``;``, ``,`` or only space between them; or a list.

    Raises:
        Malformed: they are none.
    """
    yield from json_call_list(reader, calls)
    while True:
        yield from reader.skip_space()
        following = yield from reader.peek()
        if following in (";", ",") and following:
            reader.take()
        elif following != "{":
            return
        yield from json_call(reader, calls)


def json_calls_by_name(reader: Reader, calls: Calls) -> Reading[None]:
    """Apertus': ``[{"NAME": {...}}, ...]``.

    Raises:
        Malformed: it is none.
    """
    yield from reader.skip_space()
    if not (yield from reader.accept("[")):
        raise Malformed("a list was expected")
    while not (yield from _at_end(reader, "]")):
        if not (yield from reader.accept("{")):
            raise Malformed("a call was expected")
        name = yield from json_string(reader)
        yield from reader.skip_space()
        if not (yield from reader.accept(":")):
            raise Malformed("a colon was expected")
        calls.start(name)
        yield from _arguments(reader, calls.arguments)
        yield from reader.skip_space()
        if not (yield from reader.accept("}")):
            raise Malformed("the end of a call was expected")
        calls.end()


def _arguments(reader: Reader, sink: Callable[[str], None]) -> Reading[None]:
    """An object as it stands; the text of a string that holds one; ``{}`` for null."""
    yield from reader.skip_space()
    first = yield from reader.peek()
    if first == '"':
        sink((yield from json_string(reader)))
    elif first == "n":
        yield from json_value(reader, drop)
        sink("{}")
    else:
        yield from json_value(reader, sink)


def _at_end(reader: Reader, closing: str) -> Reading[bool]:
    """Read the closing bracket, or the comma before the next entry."""
    yield from reader.skip_space()
    if (yield from reader.accept(closing)):
        return True
    if (yield from reader.accept(",")):
        yield from reader.skip_space()
        return (yield from reader.accept(closing))
    if not (yield from reader.available()):
        raise Malformed("the text ends within a call")
    return False
