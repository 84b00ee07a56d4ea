"""Formats of strings as exact patterns, where libraries allow a little more than the format does.

They take the 29th of February of any year, a leap second at any minute, and zeros before an IPv4 number. The
patterns take no leap second at all, and years from 1.
"""

from __future__ import annotations

from llm_engine.grammar.backend import InvalidGrammar
from llm_engine.grammar.schema_limits import subschemas

_YEAR = "(000[1-9]|00[1-9][0-9]|0[1-9][0-9]{2}|[1-9][0-9]{3})"
_FOURS = "(0[48]|[2468][048]|[13579][26])"
_LEAP_YEAR = f"([0-9]{{2}}{_FOURS}|{_FOURS}00)"
_DATE = (
    f"({_YEAR}-((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-9]|[12][0-9]|30)"
    f"|02-(0[1-9]|1[0-9]|2[0-8]))|{_LEAP_YEAR}-02-29)"
)
_TIME = "([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\\.[0-9]{1,9}){0,1}(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])"
_BYTE = "(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_PATTERNS = {
    "date": f"^{_DATE}$",
    "time": f"^{_TIME}$",
    "date-time": f"^{_DATE}T{_TIME}$",
    "ipv4": f"^{_BYTE}(\\.{_BYTE}){{3}}$",
}


def with_exact_formats(schema: dict[str, object]) -> dict[str, object]:
    """The schema with patterns in place of some formats; the schema itself is changed.

    Raises:
        InvalidGrammar: Such a format stands beside a pattern.
    """
    for part, path in subschemas(schema):
        name = part.get("format")
        pattern = _PATTERNS.get(name) if isinstance(name, str) else None
        if pattern is None:
            continue
        if "pattern" in part:
            raise InvalidGrammar(f"format: {name!r} cannot be enforced beside pattern (in {path or '#'})")
        del part["format"]
        part["pattern"] = pattern
    return schema
