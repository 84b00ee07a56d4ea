"""Gemma 4's calls: ``call:NAME{key:<|"|>text<|"|>,other:5}``, with strings between marks of their own."""

from __future__ import annotations

import json

from llm_stack_server.output_formats.calls import Calls
from llm_stack_server.output_formats.json_text import Malformed
from llm_stack_server.output_formats.reader import Reader, Reading

_QUOTE = '<|"|>'
_MAX_DEPTH = 64
_WORDS = {"true": True, "false": False, "null": None, "none": None}


def braced_call(reader: Reader, calls: Calls) -> Reading[None]:
    """One call. Each argument is told when it is whole.

    Raises:
        Malformed: it is none.
    """
    yield from reader.skip_space()
    if not (yield from reader.accept("call:")):
        raise Malformed("a call was expected")
    name = (yield from reader.while_in(lambda char: char not in "{<")).strip()
    if not name or not (yield from reader.accept("{")):
        raise Malformed("a name with arguments was expected")
    calls.start(name)
    separator = "{"
    while not (yield from _at_end(reader, "}")):
        key = yield from _key(reader)
        value = yield from _value(reader, 1)
        calls.arguments(f"{separator}{json.dumps(key, ensure_ascii=False)}: {_json(value)}")
        separator = ", "
    calls.arguments("{}" if separator == "{" else "}")
    calls.end()


def _key(reader: Reader) -> Reading[str]:
    if (yield from reader.accept(_QUOTE)):
        key = yield from _quoted(reader)
    else:
        key = (yield from reader.while_in(lambda char: char not in ":{}[],")).strip()
    yield from reader.skip_space()
    if not key or not (yield from reader.accept(":")):
        raise Malformed("a key was expected")
    return key


def _value(reader: Reader, depth: int) -> Reading[object]:
    if depth > _MAX_DEPTH:
        raise Malformed("too deep")
    yield from reader.skip_space()
    if (yield from reader.accept(_QUOTE)):
        return (yield from _quoted(reader))
    if (yield from reader.accept("{")):
        fields: dict[str, object] = {}
        while not (yield from _at_end(reader, "}")):
            key = yield from _key(reader)
            fields[key] = yield from _value(reader, depth + 1)
        return fields
    if (yield from reader.accept("[")):
        items: list[object] = []
        while not (yield from _at_end(reader, "]")):
            items.append((yield from _value(reader, depth + 1)))
        return items
    return _literal((yield from reader.while_in(lambda char: char not in ",}]")).strip())


def _literal(text: str) -> object:
    """A number or a word; any other text stays text, as models leave out the marks at times."""
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return text
    is_finite = isinstance(value, int) or (isinstance(value, float) and abs(value) < float("inf"))
    return value if is_finite else text


def _quoted(reader: Reader) -> Reading[str]:
    parts: list[str] = []
    if (yield from reader.until((_QUOTE,), parts.append)) is None:
        raise Malformed("the text ends within a string")
    return "".join(parts)


def _at_end(reader: Reader, closing: str) -> Reading[bool]:
    """Read the closing bracket, or the comma before the next entry."""
    yield from reader.skip_space()
    if (yield from reader.accept(closing)):
        return True
    if not (yield from reader.available()):
        raise Malformed("the text ends within a call")
    yield from reader.accept(",")
    yield from reader.skip_space()
    return (yield from reader.accept(closing))


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)
