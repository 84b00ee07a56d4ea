"""Turns an argument written as bare text into the JSON value its schema asks for. Never evaluates."""

from __future__ import annotations

import ast
import json
from collections.abc import Mapping
from typing import Any

_MAX_REFERENCES = 16
_BOOLEANS = {"true": True, "false": False}


def typed_argument(schema: Mapping[str, Any], key: str, text: str) -> object:
    """The value of ``text`` for the property ``key`` of an object schema.

    A text stays a string unless the schema allows another type that the text spells. A union takes the first
    of null, boolean, integer, number, object and array that fits, and string where it is allowed: so "4" for
    ``["string", "null"]`` stays "4". A property without a type takes JSON that is no bare number or word.
    """
    properties = schema.get("properties")
    own = properties.get(key) if isinstance(properties, Mapping) else None
    types = _types(own, schema, _MAX_REFERENCES) if isinstance(own, Mapping) else set()
    stripped = text.strip()
    if "null" in types and stripped.lower() in ("null", "none"):
        return None
    if "string" in types:
        return text
    if not types:
        return _structure(stripped, text)
    for name in ("boolean", "integer", "number", "object", "array"):
        if name in types and (found := _read(name, stripped)) is not None:
            return found
    return text


def _types(schema: Mapping[str, Any], root: Mapping[str, Any], references: int) -> set[str]:
    """All types that a schema allows; empty where it does not say."""
    reference = schema.get("$ref")
    if isinstance(reference, str):
        target = _resolve(reference, root) if references else None
        return _types(target, root, references - 1) if target is not None else set()
    declared = schema.get("type")
    if isinstance(declared, str):
        return {declared}
    if isinstance(declared, list):
        return {name for name in declared if isinstance(name, str)}
    for union in ("anyOf", "oneOf", "allOf"):
        options = schema.get(union)
        if isinstance(options, list) and references:
            parts = [_types(o, root, references - 1) for o in options if isinstance(o, Mapping)]
            return set().union(*parts)
    values = schema.get("enum", [schema["const"]] if "const" in schema else None)
    if isinstance(values, list):
        return {_type_of(value) for value in values}
    return {"object"} if "properties" in schema else set()


def _resolve(reference: str, root: Mapping[str, Any]) -> Mapping[str, Any] | None:
    if not reference.startswith("#/"):
        return None
    here: object = root
    for part in reference[2:].split("/"):
        if not isinstance(here, Mapping):
            return None
        here = here.get(part.replace("~1", "/").replace("~0", "~"))
    return here if isinstance(here, Mapping) else None


def _type_of(value: object) -> str:
    if value is None:
        return "null"
    names = ((bool, "boolean"), (int, "integer"), (float, "number"), (str, "string"), (list, "array"))
    return next((name for kind, name in names if isinstance(value, kind)), "object")


def _read(name: str, text: str) -> object | None:
    """``text`` as a value of one type; None where it is none."""
    if name == "boolean":
        return _BOOLEANS.get(text.lower())
    value = _literal(text)
    if name == "integer":
        if isinstance(value, float) and value.is_integer():
            return int(value)
        return value if isinstance(value, int) and not isinstance(value, bool) else None
    if name == "number":
        return value if isinstance(value, int | float) and not isinstance(value, bool) else None
    return value if isinstance(value, dict if name == "object" else list) else None


def _literal(text: str) -> object | None:
    """JSON, or a Python literal as models write it; what JSON cannot say (NaN, infinity, sets) is none."""
    for read in (json.loads, ast.literal_eval):
        try:
            value: object = read(text)
            json.dumps(value, allow_nan=False)
        except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
            continue
        return value
    return None


def _structure(stripped: str, text: str) -> object:
    """Without a schema only objects and arrays are told from text."""
    value = _literal(stripped) if stripped[:1] in ("{", "[") else None
    return value if isinstance(value, dict | list) else text
