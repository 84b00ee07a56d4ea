"""The options that hold, each with where it comes from: a flag, a line of a file, or the default."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from llm_stack_server.config.example import scalar
from llm_stack_server.config.options import Option

DEFAULT = "default"
FLAG = "flag"
HIDDEN = "(hidden)"


@dataclass(frozen=True, slots=True)
class Effective:
    """An option's value, fit to be shown: a secret is not among it.

    Attributes:
        name: Of the option.
        value: Its value, or `HIDDEN`.
        origin: `FLAG`, `DEFAULT`, or file and line.
    """

    name: str
    value: Any
    origin: str


def effective_options(
    options: Mapping[str, Option], given: Mapping[str, Any], places: Mapping[str, str]
) -> list[Effective]:
    """All options in their order.

    Args:
        options: All that there are.
        given: Values that were set, by flags or in a file.
        places: Where in a file those stand that come from it.
    """
    found = []
    for name, option in options.items():
        value = given.get(name, None if option.is_required else option.default)
        value = tuple(value) if isinstance(value, list) else value
        if option.is_secret and value:
            value = (HIDDEN,) * len(value) if option.is_list else HIDDEN
        origin = places.get(name) or (FLAG if name in given else DEFAULT)
        found.append(Effective(name, value, origin))
    return found


def as_table(rows: Sequence[Effective]) -> str:
    """Columns: name, value, origin."""
    cells = [(row.name, scalar(row.value), row.origin) for row in rows]
    widths = [max(len(cell[column]) for cell in cells) for column in range(2)]
    return "".join(f"{name:<{widths[0]}}  {value:<{widths[1]}}  {origin}\n" for name, value, origin in cells)


def as_yaml(rows: Sequence[Effective]) -> str:
    """A file of options, with the origin of each as a comment."""
    return "".join(f"{row.name}: {scalar(row.value)}  # {row.origin}\n" for row in rows)


def as_json(rows: Sequence[Effective]) -> str:
    """One object: name to value and origin."""
    return json.dumps({row.name: {"value": row.value, "from": row.origin} for row in rows}, indent=1) + "\n"
