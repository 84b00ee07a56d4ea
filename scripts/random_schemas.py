"""Random JSON schemas of each keyword, the same for the same seed; knows nothing of engines.

Strings, arrays and objects have limits wherever the keyword in question leaves them open, so that a model
ends its document within some tens of tokens whatever it draws.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Any

Schema = dict[str, Any]
NAMES = ("a", "id", "name", "Größe", "x_1", "unit price", "日", "tag")
WORDS = ("red", "green", "blue", "ž", "a b", 'say "hi"', "1", "null", "línea", "日本")
FORMATS = ("date", "time", "date-time", "email", "hostname", "ipv4", "ipv6", "uuid", "duration", "uri")


def random_schema(keyword: str, seed: int) -> Schema:
    """A schema in which the keyword has work to do.

    Raises:
        KeyError: No schemas are known for it.
    """
    return GENERATORS[keyword](random.Random(f"{keyword} {seed}"))


def _text(rng: random.Random) -> Schema:
    return {"type": "string", "maxLength": rng.randint(0, 6)}


def _whole(rng: random.Random) -> Schema:
    low = rng.randint(-50, 500)
    return {"type": "integer", "minimum": low, "maximum": low + rng.randint(0, 300)}


def _leaf(rng: random.Random) -> Schema:
    pick = rng.randrange(5)
    if pick == 0:
        return _text(rng)
    if pick == 1:
        return _whole(rng)
    if pick == 2:
        return {"type": rng.choice(["boolean", "null"])}
    if pick == 3:
        return {"enum": rng.sample(WORDS, rng.randint(1, 4))}
    return {"const": rng.choice([*WORDS, 0, 17, True, None])}


def _members(rng: random.Random, most: int = 3) -> Schema:
    """A closed object of leaves, all or some of them required."""
    names = rng.sample(NAMES, rng.randint(1, most))
    return {
        "type": "object",
        "properties": {name: _leaf(rng) for name in names},
        "required": names[: rng.randint(0, len(names))],
        "additionalProperties": False,
    }


def _value(rng: random.Random, depth: int = 1) -> Schema:
    if depth == 0 or rng.random() < 0.5:
        return _leaf(rng)
    if rng.random() < 0.5:
        return _members(rng)
    return {"type": "array", "items": _value(rng, depth - 1), "maxItems": rng.randint(1, 3)}


def _type(rng: random.Random) -> Schema:
    kinds: list[Schema] = [_text(rng), _whole(rng), {"type": "boolean"}, {"type": "null"}, _members(rng)]
    if rng.random() < 0.3:
        return {"type": ["string", "null", "integer"], "maxLength": 5, "minimum": 0, "maximum": 99}
    return rng.choice(kinds)


def _enum(rng: random.Random) -> Schema:
    values: list[Any] = [*WORDS, 0, -3, 2.5, True, None, [], [1, "a"], {}, {"k": [None]}]
    if rng.random() < 0.2:
        return {"enum": [f"entry {index}" for index in range(rng.randint(200, 2000))]}
    return {"enum": rng.sample(values, rng.randint(1, 8))}


def _const(rng: random.Random) -> Schema:
    values: list[Any] = [*WORDS, 12, -1, 0.5, False, None, [1, [2]], {"a": {"b": "c"}}, "", {}]
    return {"const": rng.choice(values)}


def _required(rng: random.Random) -> Schema:
    schema = _members(rng, 4)
    names = list(schema["properties"])
    return schema | {"required": rng.sample(names, rng.randint(1, len(names)))}


def _properties(rng: random.Random) -> Schema:
    names = rng.sample(NAMES, rng.randint(1, 3))
    return {
        "type": "object",
        "properties": {name: _value(rng) for name in names},
        "required": names,
        "additionalProperties": False,
    }


def _additional(rng: random.Random) -> Schema:
    # At most so many: each further name is a text without a limit.
    names = rng.sample(NAMES, rng.randint(0, 2))
    schema = {"type": "object", "properties": {name: _leaf(rng) for name in names}, "required": names}
    return schema | {"additionalProperties": _leaf(rng), "maxProperties": len(names) + rng.randint(0, 2)}


def _pattern_properties(rng: random.Random) -> Schema:
    patterns = rng.sample(["^[a-c]{1,2}$", "^x_[0-9]$", "^(red|green)$", "^[A-Z][a-z]?$"], rng.randint(1, 2))
    return {
        "type": "object",
        "patternProperties": {pattern: _leaf(rng) for pattern in patterns},
        "additionalProperties": False,
        "maxProperties": rng.randint(1, 3),
    }


def _min_properties(rng: random.Random) -> Schema:
    schema = _members(rng, 4)
    names = list(schema["properties"])
    if rng.random() < 0.5:
        schema["required"] = names
    return schema | {"minProperties": rng.randint(len(schema["required"]), len(names))}


def _max_properties(rng: random.Random) -> Schema:
    names = rng.sample(NAMES, rng.randint(0, 2))
    return {
        "type": "object",
        "properties": {name: _leaf(rng) for name in names},
        "required": names,
        "additionalProperties": _whole(rng),
        "maxProperties": len(names) + rng.randint(0, 2),
    }


def _items(rng: random.Random) -> Schema:
    item = _members(rng, 2) if rng.random() < 0.3 else _leaf(rng)
    return {"type": "array", "items": item, "maxItems": rng.randint(1, 3)}


def _prefix_items(rng: random.Random) -> Schema:
    prefix = [_leaf(rng) for _ in range(rng.randint(1, 3))]
    rest: Any = _leaf(rng) if rng.random() < 0.5 else False
    schema: Schema = {"type": "array", "prefixItems": prefix, "items": rest}
    return schema if rest is False else schema | {"maxItems": len(prefix) + rng.randint(0, 2)}


def _min_items(rng: random.Random) -> Schema:
    low = rng.randint(1, 4)
    return {"type": "array", "items": _whole(rng), "minItems": low, "maxItems": low + rng.randint(0, 2)}


def _max_items(rng: random.Random) -> Schema:
    return {"type": "array", "items": _leaf(rng), "maxItems": rng.randint(0, 4)}


def _min_length(rng: random.Random) -> Schema:
    low = rng.randint(0, 12)
    return {"type": "string", "minLength": low, "maxLength": low + rng.randint(0, 6)}


def _max_length(rng: random.Random) -> Schema:
    return {"type": "string", "maxLength": rng.randint(0, 16)}


def _pattern(rng: random.Random) -> Schema:
    atoms = ["[a-f]", "[0-9]", "(ab|c)", "\\d", "x", "-", "[A-Z]", "(é|日)", '[^"\\\\a-z\\x00-\\x20]']
    parts = []
    for _ in range(rng.randint(1, 5)):
        low = rng.randint(0, 3)
        parts.append(rng.choice(atoms) + rng.choice(["", "{0,1}", f"{{{low},{low + 2}}}", "{2}"]))
    return {"type": "string", "pattern": f"^{''.join(parts)}$"}


def _format(name: str) -> Callable[[random.Random], Schema]:
    def make(rng: random.Random) -> Schema:
        one = {"type": "string", "format": name}
        return rng.choice(
            [
                one,
                {
                    "type": "object",
                    "properties": {"v": one},
                    "required": ["v"],
                    "additionalProperties": False,
                },
            ]
        )

    return make


def _bounds(rng: random.Random, low: str, high: str) -> Schema:
    if rng.random() < 0.7:
        begin, width = rng.randint(-2000, 2000), rng.choice([2, 3, 10, 99, 1234])
        return {"type": "integer", low: begin, high: begin + width}
    # In an array: a model goes on and on with the digits of a number that nothing follows.
    start = round(rng.uniform(-20, 20), rng.randint(1, 3))
    number = {"type": "number", low: start, high: round(start + rng.choice([0.5, 1.25, 10.0]), 3)}
    return {"type": "array", "items": number, "minItems": 1, "maxItems": 2}


def _multiple_of(rng: random.Random) -> Schema:
    step = rng.choice([2, 3, 5, 7, 10, 12, 25])
    return {"type": "integer", "multipleOf": step, "minimum": 0, "maximum": step * rng.randint(1, 40)}


def _any_of(rng: random.Random) -> Schema:
    return {"anyOf": [_value(rng) for _ in range(rng.randint(1, 4))]}


def _one_of(rng: random.Random) -> Schema:
    if rng.random() < 0.5:
        return {"oneOf": rng.sample([_text(rng), _whole(rng), {"type": "null"}, {"type": "boolean"}], 3)}
    kinds = rng.sample(["cat", "dog", "fox"], rng.randint(2, 3))
    return {"oneOf": [_tagged(kind, rng) for kind in kinds]}


def _tagged(kind: str, rng: random.Random) -> Schema:
    return {
        "type": "object",
        "properties": {"kind": {"const": kind}, "v": _leaf(rng)},
        "required": ["kind", "v"],
        "additionalProperties": False,
    }


def _all_of_one(rng: random.Random) -> Schema:
    return {"allOf": [_members(rng)]}


def _ref(rng: random.Random) -> Schema:
    inner = {
        "type": "object",
        "properties": {"v": _leaf(rng), "next": {"$ref": "#/$defs/node"}},
        "required": ["v"],
        "additionalProperties": False,
    }
    if rng.random() < 0.4:
        return {"$ref": "#/$defs/node", "$defs": {"node": inner}}  # recursive: ends where the model leaves it
    return {"$ref": "#/$defs/leaf", "$defs": {"leaf": _value(rng), "unused": True}}


def _notes(rng: random.Random) -> Schema:
    notes = {
        "title": "T",
        "description": "Some words.",
        "default": rng.choice([1, "x", None]),
        "examples": [1],
    }
    return _value(rng) | notes | {"$comment": "c", "deprecated": True}


GENERATORS: Mapping[str, Callable[[random.Random], Schema]] = {
    "type": _type,
    "enum": _enum,
    "const": _const,
    "properties": _properties,
    "required": _required,
    "additionalProperties": _additional,
    "patternProperties": _pattern_properties,
    "minProperties": _min_properties,
    "maxProperties": _max_properties,
    "items": _items,
    "prefixItems": _prefix_items,
    "minItems": _min_items,
    "maxItems": _max_items,
    "minLength": _min_length,
    "maxLength": _max_length,
    "pattern": _pattern,
    **{f"format: {name}": _format(name) for name in FORMATS},
    "minimum": lambda rng: _bounds(rng, "minimum", "maximum"),
    "maximum": lambda rng: _bounds(rng, "minimum", "maximum"),
    "exclusiveMinimum": lambda rng: _bounds(rng, "exclusiveMinimum", "maximum"),
    "exclusiveMaximum": lambda rng: _bounds(rng, "minimum", "exclusiveMaximum"),
    "multipleOf": _multiple_of,
    "anyOf": _any_of,
    "oneOf": _one_of,
    "allOf": _all_of_one,
    "$ref": _ref,
    "title, description, default": _notes,
}
"""By keyword; of formats, by name."""
