"""The tools that a request offers, and how the model may choose among them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from llm_stack_server.schemas.fields import RequestBody

MAX_TOOLS = 128
_NAME = r"^[a-zA-Z0-9_.\-]{1,128}$"
_MAX_DEPTH = 32
_TYPES = frozenset({"null", "boolean", "integer", "number", "string", "object", "array"})
_LISTS = ("anyOf", "oneOf", "allOf", "prefixItems")
_SINGLE = ("items", "additionalProperties", "not", "if", "then", "else", "contains", "propertyNames")
_NAMED = ("properties", "patternProperties", "$defs", "definitions")
_PROPERTY_CLASS = re.compile(r"\\[pP]\{[^}]*\}")


def checked_parameters(value: object) -> dict[str, Any] | None:
    """The schema of a tool's parameters, as a field's validator."""
    if value is None:
        return None
    if not isinstance(value, dict):
        raise ValueError("must be a JSON schema, which is an object")
    check_schema(value, "", 0)
    return value


def check_schema(schema: object, path: str, depth: int) -> None:
    """Refuse what no JSON schema can be: wrong types of keywords, unknown type names, broken patterns.

    Raises:
        ValueError: names the place within the schema.
    """
    if isinstance(schema, bool):
        return
    where = path or "the schema"
    if not isinstance(schema, dict):
        raise ValueError(f"{where} must be an object")
    if depth > _MAX_DEPTH:
        raise ValueError(f"{where} is nested deeper than {_MAX_DEPTH}")
    _check_type(schema.get("type", "object"), f"{path}.type")
    _check_pattern(schema.get("pattern"), f"{path}.pattern")
    _check_list_of(schema, "required", path, str)
    _check_list_of(schema, "enum", path, object)
    for key in _NAMED:
        named = schema.get(key, {})
        if not isinstance(named, dict):
            raise ValueError(f"{path}.{key} must be an object")
        for name, part in named.items():
            check_schema(part, f"{path}.{key}.{name[:40]}", depth + 1)
    for key in _LISTS:
        _check_list_of(schema, key, path, object)
        for index, part in enumerate(schema.get(key, ())):
            check_schema(part, f"{path}.{key}[{index}]", depth + 1)
    for key in _SINGLE:
        if key in schema and not (key == "items" and isinstance(schema[key], list)):
            check_schema(schema[key], f"{path}.{key}", depth + 1)


def _check_type(value: object, path: str) -> None:
    names = value if isinstance(value, list) else [value]
    for name in names:
        if not isinstance(name, str) or name not in _TYPES:
            raise ValueError(f"{path} must be among {', '.join(sorted(_TYPES))}, got {str(name)[:40]!r}")


def _check_pattern(value: object, path: str) -> None:
    if value is None:
        return
    if not isinstance(value, str):
        raise ValueError(f"{path} must be a string")
    try:
        re.compile(_PROPERTY_CLASS.sub(r"\\w", value))  # Unicode classes are JavaScript's, not Python's
    except (re.error, RecursionError, OverflowError) as error:
        raise ValueError(f"{path} is no regular expression: {error}") from None


def _check_list_of(schema: Mapping[str, Any], key: str, path: str, kind: type) -> None:
    value = schema.get(key, [])
    if not isinstance(value, list) or not all(isinstance(part, kind) for part in value):
        raise ValueError(f"{path}.{key} must be a list" + (" of strings" if kind is str else ""))


class FunctionSpec(RequestBody):
    """A function that the model may call."""

    name: Annotated[str, Field(pattern=_NAME)]
    description: str | None = None
    parameters: Annotated[dict[str, Any] | None, BeforeValidator(checked_parameters)] = None
    strict: bool | None = None


class Tool(RequestBody):
    """One entry of ``tools``."""

    type: Literal["function"]
    function: FunctionSpec

    def for_template(self) -> dict[str, Any]:
        """The tool as chat templates expect it: as OpenAI spells it, without absent fields."""
        function: dict[str, Any] = {"name": self.function.name}
        if self.function.description is not None:
            function["description"] = self.function.description
        function["parameters"] = self.function.parameters or {"type": "object", "properties": {}}
        return {"type": "function", "function": function}


class NamedFunction(RequestBody):
    """The function of a named choice."""

    name: str


class NamedToolChoice(RequestBody):
    """``tool_choice`` as an object: this function and no other."""

    type: Literal["function"]
    function: NamedFunction


ToolChoice = Literal["none", "auto", "required"] | NamedToolChoice
ToolList = Annotated[list[Tool], Field(max_length=MAX_TOOLS)]


def check_names(names: Iterable[str]) -> None:
    """Refuse two tools of one name.

    Raises:
        ValueError: names it.
    """
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise ValueError(f"two tools have the name {name!r}")
        seen.add(name)
