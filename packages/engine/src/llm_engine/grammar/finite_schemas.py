"""Whether a JSON schema with references allows any finite value; knows nothing of what enforces schemas.

An object that requires itself has none: a model would write braces up to its limit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from urllib.parse import unquote

_MAX_ROUNDS = 256
_SCALARS = frozenset({"string", "number", "integer", "boolean", "null"})


def allows_finite_values(schema: dict[str, object], parts: Sequence[dict[str, object]]) -> bool:
    """Tell whether some value that ends is allowed. True where it cannot be told.

    Args:
        schema: The whole schema.
        parts: It and all schemas within it.
    """
    if not any("$ref" in part for part in parts):
        return True
    finite: set[int] = set()

    def is_finite(part: object) -> bool:
        return part is not False and (not isinstance(part, dict) or id(part) in finite)

    waiting = list(parts)
    for _ in range(_MAX_ROUNDS):
        left = [part for part in waiting if not _has_value(part, schema, is_finite)]
        finite.update(id(part) for part in waiting)
        finite.difference_update(id(part) for part in left)
        if len(left) == len(waiting):
            return id(schema) in finite
        waiting = left
    return True


def _has_value(part: dict[str, object], root: dict[str, object], is_finite: Callable[[object], bool]) -> bool:
    """Whether a part has a value, given the parts of which that is known."""
    if "$ref" in part and not is_finite(_target(part["$ref"], root)):
        return False
    for name in ("anyOf", "oneOf"):
        options = part.get(name)
        if isinstance(options, list) and not any(map(is_finite, options)):
            return False
    every = part.get("allOf")
    if isinstance(every, list) and not all(map(is_finite, every)):
        return False
    if "enum" in part or "const" in part:
        return True
    kinds = part.get("type")
    types = {kinds} if isinstance(kinds, str) else set(kinds) if isinstance(kinds, list) else _SCALARS
    if types & _SCALARS:
        return True
    return ("object" in types and _has_object(part, is_finite)) or (
        "array" in types and _has_array(part, is_finite)
    )


def _has_object(part: dict[str, object], is_finite: Callable[[object], bool]) -> bool:
    properties, required = part.get("properties"), part.get("required")
    if not isinstance(properties, dict) or not isinstance(required, list):
        return True
    return all(is_finite(properties.get(name)) for name in required if isinstance(name, str))


def _has_array(part: dict[str, object], is_finite: Callable[[object], bool]) -> bool:
    least = part.get("minItems", 0)
    if not isinstance(least, int) or least <= 0:
        return True
    first = part.get("prefixItems")
    items = first[:least] if isinstance(first, list) else []
    rest = [part["items"]] if len(items) < least and "items" in part else []
    return all(map(is_finite, [*items, *rest]))


def _target(reference: object, root: dict[str, object]) -> object:
    """What a reference leads to; None where that is not known."""
    if reference == "#":
        return root
    if not isinstance(reference, str) or not reference.startswith("#/"):
        return None
    here: object = root
    for step in reference[2:].split("/"):
        name = unquote(step).replace("~1", "/").replace("~0", "~")
        if isinstance(here, dict):
            here = here.get(name)
        elif isinstance(here, list) and name.isdigit() and int(name) < len(here):
            here = here[int(name)]
        else:
            return None
    return here
