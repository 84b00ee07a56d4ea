"""Which JSON schemas xgrammar enforces to the letter; knows nothing of how it does.

The library reads the first of `$ref`, `const`, `enum`, `anyOf`, `oneOf`, `allOf` and `type` that it finds and
passes over what stands beside it. So only what it does read may stand there.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from llm_engine.grammar.backend import InvalidGrammar
from llm_engine.grammar.schema_limits import subschemas

_NOTES = frozenset(
    {
        "$comment",
        "$defs",
        "$schema",
        "contentEncoding",
        "contentMediaType",
        "contentSchema",
        "default",
        "definitions",
        "deprecated",
        "description",
        "discriminator",
        "example",
        "examples",
        "readOnly",
        "title",
        "writeOnly",
    }
)
_NUMBERS = frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"})
_OF_TYPE: Mapping[str, frozenset[str]] = {
    "null": frozenset(),
    "boolean": frozenset(),
    "integer": _NUMBERS | {"multipleOf"},
    "number": _NUMBERS,
    "string": frozenset({"minLength", "maxLength", "pattern", "format"}),
    "array": frozenset({"items", "prefixItems", "minItems", "maxItems"}),
    "object": frozenset({"properties", "required", "additionalProperties", "minProperties", "maxProperties"}),
}
_FORMATS = frozenset({"date", "date-time", "time", "email", "uuid", "ipv4", "ipv6", "uri", "duration"})
# Each alone decides what the value is; the first that is there counts.
_DECIDING = ("$ref", "const", "enum", "anyOf", "oneOf", "allOf")


def check_keywords(schema: dict[str, object]) -> None:
    """Refuse a schema that the library would take and not enforce.

    Raises:
        InvalidGrammar: The keyword is named, and where it stands.
    """
    for part, path in subschemas(schema):
        found = [key for key in _DECIDING if key in part]
        known = {found[0]} if found else _keywords_of_type(part, path)
        for key in part:
            if key in known or key in _NOTES or (key == "$id" and not path):
                continue
            if found and key == "type" and found[0] in ("const", "enum"):
                continue  # checked against the values below
            beside = f" beside {found[0]}" if found and key in _all_keywords() else ""
            raise InvalidGrammar(f"xgrammar does not enforce {key[:40]}{beside} (in {path or '#'})")
        if found:
            _check_deciding(found[0], part, path)


def as_any_of(schema: dict[str, object]) -> dict[str, object]:
    """The schema, changed: schemas that exclude each other are one of them where they are any of them."""
    for part, _ in subschemas(schema):
        if "oneOf" in part:
            part["anyOf"] = part.pop("oneOf")
    return schema


def _all_keywords() -> frozenset[str]:
    return frozenset().union(*_OF_TYPE.values(), _DECIDING, {"type"})


def _keywords_of_type(part: dict[str, object], path: str) -> set[str]:
    """What may stand in a schema that begins with a type, or with nothing."""
    kind = part.get("type")
    kinds = kind if isinstance(kind, list) else [kind] if isinstance(kind, str) else []
    known = {"type"}.union(*(_OF_TYPE.get(one, frozenset()) for one in kinds if isinstance(one, str)))
    if kind is None:
        for key in part:
            if any(key in keywords for keywords in _OF_TYPE.values()):
                raise InvalidGrammar(f"xgrammar does not enforce {key} without a type (in {path or '#'})")
    _check_names(part, path)
    step = part.get("multipleOf")
    if step is not None and (not isinstance(step, int) or step < 1):
        raise InvalidGrammar(f"xgrammar enforces multipleOf only of whole numbers (in {path or '#'})")
    if ("pattern" in part or "format" in part) and ("minLength" in part or "maxLength" in part):
        other = "pattern" if "pattern" in part else "format"
        raise InvalidGrammar(
            f"xgrammar does not enforce minLength or maxLength beside {other} (in {path or '#'})"
        )
    if ")?" in str(part.get("pattern")):
        # It lets "(-[0-9]+)?" begin without the "-".
        raise InvalidGrammar(
            f"pattern: xgrammar does not enforce (...)?, write (...){{0,1}} (in {path or '#'})"
        )
    if "pattern" in part and "format" in part:
        raise InvalidGrammar(f"xgrammar does not enforce format beside pattern (in {path or '#'})")
    if "format" in part and part["format"] not in _FORMATS:
        raise InvalidGrammar(f"format: {str(part['format'])[:40]!r} is not enforced (in {path or '#'})")
    return known


def _check_names(part: dict[str, object], path: str) -> None:
    """Members must be spelled as they are, and required ones be described."""
    properties, required = part.get("properties", {}), part.get("required", [])
    if not isinstance(properties, dict) or not isinstance(required, list):
        return  # the library says what is wrong with it
    for name in properties:
        if json.dumps(name, ensure_ascii=False) != f'"{name}"':
            raise InvalidGrammar(f"xgrammar does not enforce properties with the name {name[:40]!r}")
    for name in required:
        if name not in properties:
            raise InvalidGrammar(f"xgrammar enforces required only of properties (in {path or '#'})")


def _check_deciding(key: str, part: dict[str, object], path: str) -> None:
    where, value = path or "#", part[key]
    if key == "$ref":
        if not isinstance(value, str) or not (value == "#" or value.startswith("#/")) or "%" in value:
            raise InvalidGrammar(
                f"$ref: only places within the schema can be enforced, got {str(value)[:60]!r}"
            )
    elif key in ("const", "enum") and "type" in part:
        kinds = part["type"] if isinstance(part["type"], list) else [part["type"]]
        for one in [value] if key == "const" else value if isinstance(value, list) else []:
            if not any(_is_of_type(one, kind) for kind in kinds):
                raise InvalidGrammar(f"xgrammar does not enforce type beside {key} (in {where})")
    elif key == "allOf" and (not isinstance(value, list) or len(value) != 1):
        raise InvalidGrammar(f"xgrammar does not enforce allOf of several schemas (in {where})")
    elif key == "oneOf" and not (isinstance(value, list) and _exclude_each_other(value)):
        raise InvalidGrammar(
            f"xgrammar enforces oneOf only of schemas that exclude each other by type or const (in {where})"
        )


def _is_of_type(value: object, kind: object) -> bool:
    if isinstance(value, bool):
        return kind == "boolean"
    if isinstance(value, int | float):
        return kind == "number" or (kind == "integer" and float(value).is_integer())
    names = {str: "string", list: "array", dict: "object", type(None): "null"}
    return names.get(type(value)) == kind


def _exclude_each_other(options: list[object]) -> bool:
    """Whether no value can fit two of the schemas: other types, constants, or constant members."""
    if len(options) == 1:
        return True
    parts = [one for one in options if isinstance(one, dict)]
    if len(parts) < len(options):
        return False
    kinds = ["number" if one.get("type") == "integer" else one.get("type") for one in parts]
    if all(isinstance(kind, str) for kind in kinds) and len(set(kinds)) == len(kinds):
        return True
    if _are_distinct([_values(one) for one in parts]):
        return True
    members = [_required_members(one) for one in parts]
    names = set(members[0]).intersection(*members[1:])
    return any(_are_distinct([_values(one[name]) for one in members]) for name in names)


def _values(part: object) -> set[str] | None:
    """The values that a schema allows, if it lists them."""
    if not isinstance(part, dict):
        return None
    listed = [part["const"]] if "const" in part else part.get("enum")
    return {json.dumps(one, sort_keys=True) for one in listed} if isinstance(listed, list) else None


def _required_members(part: dict[str, object]) -> dict[str, object]:
    properties, required = part.get("properties"), part.get("required")
    if part.get("type") != "object" or not isinstance(properties, dict) or not isinstance(required, list):
        return {}
    return {name: one for name, one in properties.items() if name in required}


def _are_distinct(groups: list[set[str] | None]) -> bool:
    seen: set[str] = set()
    for group in groups:
        if group is None or group & seen:
            return False
        seen |= group
    return True
