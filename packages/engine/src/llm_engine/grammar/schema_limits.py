"""What JSON schemas may cost, and a walk over their parts; knows nothing of what enforces them."""

from __future__ import annotations

import json
from collections.abc import Iterator

from llm_engine.grammar.backend import InvalidGrammar
from llm_engine.grammar.finite_schemas import allows_finite_values

# More would compile and end the request at its second token: four items each of llguidance's 2,000 a step.
MAX_PROPERTIES = 400
MAX_DEPTH = 64
MAX_CHOICES = 10_000
# White space between two tokens of JSON; without a bound a model may go on with it for ever.
MAX_WHITE_SPACE = 16

_BY_NAME = frozenset({"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"})
_ONE = frozenset(
    {
        "items",
        "additionalItems",
        "additionalProperties",
        "unevaluatedItems",
        "unevaluatedProperties",
        "propertyNames",
        "contains",
        "not",
        "if",
        "then",
        "else",
    }
)
_SEVERAL = frozenset({"allOf", "anyOf", "oneOf", "prefixItems", "items"})


def parsed(text: str) -> object:
    """The value of a JSON text.

    Raises:
        InvalidGrammar: It is none, or is nested too deeply.
    """
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidGrammar(f"not JSON: {error}") from None


def checked_schema(schema: object) -> dict[str, object]:
    """A schema within the limits of size and depth, the schema `true` as an object.

    Raises:
        InvalidGrammar: It is beyond them, allows nothing, or is no schema at all.
    """
    if schema is False:
        raise InvalidGrammar("the schema false allows nothing")
    if schema is True:
        return {}
    if not isinstance(schema, dict):
        raise InvalidGrammar("a JSON schema is an object")
    _check_depth(schema)
    for part, path in subschemas(schema):
        properties = part.get("properties")
        if isinstance(properties, dict) and len(properties) > MAX_PROPERTIES:
            where = path or "#"
            raise InvalidGrammar(
                f"properties: at most {MAX_PROPERTIES} in one object, got {len(properties)} in {where}"
            )
        _check_least_members(part, path or "#")
    if not allows_finite_values(schema, [part for part, _ in subschemas(schema)]):
        raise InvalidGrammar("$ref: the schema requires itself without end, so that no text is a value of it")
    return schema


def _check_least_members(part: dict[str, object], where: str) -> None:
    """Refuse a least number of members that further ones would have to make up: their names may repeat."""
    least, required = part.get("minProperties", 0), part.get("required", [])
    if not isinstance(least, int | float) or not isinstance(required, list) or least <= len(required):
        return
    if part.get("additionalProperties", True) is not False or "patternProperties" in part:
        raise InvalidGrammar(
            "minProperties: more than are required can be enforced only with additionalProperties false "
            f"(in {where})"
        )


def subschemas(schema: dict[str, object]) -> Iterator[tuple[dict[str, object], str]]:
    """The schema and all schemas within it, each with its place such as "/properties/a"."""
    waiting: list[tuple[object, str]] = [(schema, "")]
    while waiting:
        part, path = waiting.pop()
        if not isinstance(part, dict):
            continue
        yield part, path
        for key, value in part.items():
            here = f"{path}/{key}"
            if key in _BY_NAME and isinstance(value, dict):
                waiting += [(one, f"{here}/{name}") for name, one in value.items()]
            if key in _SEVERAL and isinstance(value, list):
                waiting += [(one, f"{here}/{index}") for index, one in enumerate(value)]
            elif key in _ONE:
                waiting.append((value, here))


def checked_choices(text: str) -> list[str]:
    """The texts of a spec of the kind "choice".

    Raises:
        InvalidGrammar: There is none, one is empty, or there are too many.
    """
    choices = parsed(text)
    if not isinstance(choices, list) or not choices or not all(isinstance(one, str) for one in choices):
        raise InvalidGrammar("choices are a list of strings, at least one")
    if not all(choices) or len(choices) > MAX_CHOICES:
        raise InvalidGrammar(f"choices must not be empty, and at most {MAX_CHOICES}")
    return choices


def _check_depth(value: object) -> None:
    """Refuse values nested deeper than the limit, whatever they mean."""
    level, depth = [value], 0
    while level:
        depth += 1
        if depth > 2 * MAX_DEPTH:  # a level of a schema takes two of JSON: a keyword, and a name below it
            raise InvalidGrammar(f"schemas are nested at most {MAX_DEPTH} deep")
        level = [
            inner
            for outer in level
            for inner in (
                outer.values() if isinstance(outer, dict) else outer if isinstance(outer, list) else ()
            )
            if isinstance(inner, (dict, list))
        ]


def one_line(message: str) -> str:
    """A library's message as one line of a bounded length."""
    return " ".join(message.split())[:500]
