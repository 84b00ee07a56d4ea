"""Writes structural tags as xgrammar takes them; knows nothing of how they are asked for."""

from __future__ import annotations

from llm_engine.grammar.date_formats import with_exact_formats
from llm_engine.grammar.schema_limits import subschemas
from llm_engine.grammar.structural_tags import (
    AnyText,
    Json,
    Node,
    Parts,
    Regex,
    Repeated,
    Separated,
    Tag,
    Text,
    Triggered,
)
from llm_engine.grammar.xgrammar_schemas import as_any_of, check_keywords


def to_xgrammar(node: Node, max_white_space: int) -> dict[str, object]:
    """A structural tag of the node.

    Raises:
        InvalidGrammar: A schema within it holds a keyword that the library would pass over.
    """
    return {"type": "structural_tag", "format": _format(node, max_white_space)}


def _with_others(schema: dict[str, object]) -> dict[str, object]:
    """The schema with what it leaves open allowed by name: within tags the library forbids it otherwise."""
    for part, _ in subschemas(schema):
        kind = part.get("type")
        kinds = kind if isinstance(kind, list) else [kind]
        if "object" in kinds:
            part.setdefault("additionalProperties", True)
        if "array" in kinds:
            part.setdefault("items", True)
    return schema


def _format(node: Node, space: int) -> dict[str, object]:
    match node:
        case Text(value):
            return {"type": "const_string", "value": value}
        case Json(schema):
            check_keywords(schema)
            schema = _with_others(as_any_of(with_exact_formats(schema)))
            return {"type": "json_schema", "json_schema": schema, "max_whitespace_cnt": space}
        case Regex(pattern):
            return {"type": "regex", "pattern": pattern}
        case AnyText():
            return {"type": "any_text"}
        case Parts(parts, either):
            elements = [_format(one, space) for one in parts]
            return {"type": "or" if either else "sequence", "elements": elements}
        case Repeated(part, least, most):
            most = -1 if most is None else most
            return {"type": "repeat", "min": least, "max": most, "content": _format(part, space)}
        case Tag(begin, content, ends):
            end = ends[0] if len(ends) == 1 else list(ends)
            return {"type": "tag", "begin": begin, "content": _format(content, space), "end": end}
        case Triggered(triggers, tags):
            return {
                "type": "triggered_tags",
                "triggers": list(triggers),
                "tags": [_format(tag, space) for tag in tags],
                "at_least_one": node.at_least_one,
                "stop_after_first": node.stop_after_first,
            }
        case Separated(tags, separator):
            return {
                "type": "tags_with_separator",
                "tags": [_format(tag, space) for tag in tags],
                "separator": separator,
                "at_least_one": node.at_least_one,
                "stop_after_first": node.stop_after_first,
            }
