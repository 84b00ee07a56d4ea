"""Calls whose arguments are elements named by their keys (MiniMax M3) or by attributes (Kimi K3)."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from llm_stack_server.output_formats.argument_types import typed_argument
from llm_stack_server.output_formats.calls import Calls
from llm_stack_server.output_formats.json_text import Malformed
from llm_stack_server.output_formats.reader import Reader, Reading

NAMESPACE = "]<]minimax[>["
_MAX_DEPTH = 64
_OPEN, _CLOSE, _SEP = "<|open|>", "<|close|>", "<|sep|>"
_ATTRIBUTE = re.compile(r'([\w-]+)="([^"]*)"')


def minimax_m3_call(reader: Reader, calls: Calls) -> Reading[None]:
    """One call behind ``<invoke name="``: elements within elements, ``item`` for those of a list.

    Raises:
        Malformed: elements do not match.
    """
    name = (yield from _text(reader, '">')).strip()
    if not name:
        raise Malformed("a call without a name")
    calls.start(name)
    root = calls.tools.parameters.get(name, {})
    separator = "{"
    while True:
        key = yield from _opened(reader)
        if key is None:
            break
        value = yield from _element(reader, key, root, root, 1)
        calls.arguments(f"{separator}{_json(key)}: {_json(value)}")
        separator = ", "
    if not (yield from reader.accept("/invoke>")):
        raise Malformed("the end of the call was expected")
    calls.arguments("{}" if separator == "{" else "}")
    calls.end()


def _opened(reader: Reader) -> Reading[str | None]:
    """The name of the element that begins; None where one ends, of which ``/NAME>`` is left."""
    yield from reader.skip_space()
    if not (yield from reader.accept(f"{NAMESPACE}<")):
        raise Malformed("an element was expected")
    if (yield from reader.peek()) == "/":
        return None
    key = (yield from _text(reader, ">")).strip()
    if not key:
        raise Malformed("an element without a name")
    return key


def _element(
    reader: Reader, key: str, parent: Mapping[str, Any], root: Mapping[str, Any], depth: int
) -> Reading[object]:
    """The value of an element whose start was read, by its schema."""
    if depth > _MAX_DEPTH:
        raise Malformed("too deep")
    schema = _property(parent, key)
    parts: list[str] = []
    if (yield from reader.until((f"{NAMESPACE}<",), parts.append)) is None:
        raise Malformed("the text ends within an element")
    text = "".join(parts)
    if (yield from reader.accept(f"/{key}>")):
        if not text.strip() and schema.get("type") in ("object", "array"):
            return {} if schema["type"] == "object" else []
        return typed_argument({"properties": {"": schema}, "$defs": root.get("$defs", {})}, "", text)
    fields: list[tuple[str, object]] = []
    while True:
        child = (yield from _text(reader, ">")).strip()
        if not child or child.startswith("/"):
            raise Malformed("an element does not end")
        inner: Mapping[str, Any] = {"properties": {child: schema["items"]}} if _is_list(schema) else schema
        fields.append((child, (yield from _element(reader, child, inner, root, depth + 1))))
        yield from reader.skip_space()
        if not (yield from reader.accept(f"{NAMESPACE}<")):
            raise Malformed("an element was expected")
        if (yield from reader.accept(f"/{key}>")):
            break
    if _is_list(schema) or all(name == "item" for name, _ in fields):
        return [value for _, value in fields]
    return dict(fields)


def _is_list(schema: Mapping[str, Any]) -> bool:
    return isinstance(schema.get("items"), Mapping)


def _property(schema: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    properties = schema.get("properties")
    own = properties.get(key) if isinstance(properties, Mapping) else None
    return own if isinstance(own, Mapping) else {}


def kimi_k3_call(reader: Reader, calls: Calls) -> Reading[None]:
    """One call behind ``<|open|>call``: arguments that say their types, or one JSON object.

    Raises:
        Malformed: tags are missing.
    """
    name = _attributes((yield from _text(reader, _SEP))).get("tool", "")
    if not name:
        raise Malformed("a call without a name")
    calls.start(name)
    separator = "{"
    while True:
        yield from reader.skip_space()
        if (yield from reader.accept(f"{_CLOSE}call{_SEP}")):
            break
        if separator == "{" and (yield from reader.accept(f"{_OPEN}json")):
            yield from _text(reader, _SEP)
            if (yield from reader.until((f"{_CLOSE}json{_SEP}",), calls.arguments)) is None:
                raise Malformed("the text ends within a call")
            yield from reader.skip_space()
            if not (yield from reader.accept(f"{_CLOSE}call{_SEP}")):
                raise Malformed("the end of the call was expected")
            calls.end()
            return
        if not (yield from reader.accept(f"{_OPEN}argument")):
            raise Malformed("an argument was expected")
        told = _attributes((yield from _text(reader, _SEP)))
        text = yield from _text(reader, f"{_CLOSE}argument{_SEP}")
        value = _typed(text, told.get("type", ""), calls, name, told.get("key", ""))
        calls.arguments(f"{separator}{_json(told.get('key', ''))}: {_json(value)}")
        separator = ", "
    calls.arguments("{}" if separator == "{" else "}")
    calls.end()


def _typed(text: str, kind: str, calls: Calls, name: str, key: str) -> object:
    """The value that the tag says it is; where it is none of that kind, the schema decides."""
    if kind == "string":
        return text
    try:
        value: object = json.loads(text)
        json.dumps(value, allow_nan=False)
    except (ValueError, RecursionError):
        return calls.tools.value(name, key, text)
    return value


def _attributes(head: str) -> dict[str, str]:
    return {
        key: value.replace("&quot;", '"').replace("&amp;", "&") for key, value in _ATTRIBUTE.findall(head)
    }


def _text(reader: Reader, end: str) -> Reading[str]:
    parts: list[str] = []
    if (yield from reader.until((end,), parts.append)) is None:
        raise Malformed("the text ends within a tag")
    return "".join(parts)


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)
