"""Reads one JSON value as text, piece by piece, without building it."""

from __future__ import annotations

import json

from llm_stack_server.output_formats.reader import Reader, Reading, Sink

_CLOSES = {"{": "}", "[": "]"}
_MAX_DEPTH = 256


class Malformed(Exception):
    """The text is not what its beginning promised."""


def json_value(reader: Reader, sink: Sink) -> Reading[None]:
    """Read one value; ``sink`` gets its text as it comes.

    Brackets and strings are followed, not the grammar between them: a value that a model wrote wrongly is
    handed on as it stands.

    Raises:
        Malformed: no value begins here, brackets do not match, or the text ends within it.
    """
    yield from reader.skip_space()
    first = yield from reader.peek()
    if first == '"':
        yield from _string(reader, sink)
    elif first in _CLOSES:
        yield from _nested(reader, sink)
    elif first and (first.isalnum() or first in "-+."):
        sink((yield from reader.while_in(lambda c: c.isalnum() or c in "-+.")))
    else:
        raise Malformed("a value was expected")


def json_string(reader: Reader) -> Reading[str]:
    """Read one string and decode it.

    Raises:
        Malformed: there is none, or it is none that JSON allows.
    """
    yield from reader.skip_space()
    parts: list[str] = []
    if (yield from reader.peek()) != '"':
        raise Malformed("a string was expected")
    yield from _string(reader, parts.append)
    try:
        text = json.loads("".join(parts), strict=False)
    except ValueError:
        raise Malformed("a string is broken") from None
    assert isinstance(text, str)
    return text


def _nested(reader: Reader, sink: Sink) -> Reading[None]:
    open_brackets: list[str] = []
    while (yield from reader.available()):
        char = yield from reader.peek()
        if char == '"':
            yield from _string(reader, sink)
            continue
        sink(reader.take())
        if char in _CLOSES:
            open_brackets.append(_CLOSES[char])
            if len(open_brackets) > _MAX_DEPTH:
                raise Malformed("too deep")
        elif char in "}]":
            if open_brackets.pop() != char:
                raise Malformed("brackets do not match")
            if not open_brackets:
                return
    raise Malformed("the text ends within a value")


def _string(reader: Reader, sink: Sink) -> Reading[None]:
    sink(reader.take())
    while True:
        stop = yield from reader.until(('"', "\\"), sink)
        if stop is None:
            raise Malformed("the text ends within a string")
        sink(stop)
        if stop == '"':
            return
        if not (yield from reader.available()):
            raise Malformed("the text ends within a string")
        sink(reader.take())
