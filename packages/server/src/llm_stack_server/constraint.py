"""What constrains the answers of a request: its format fields, or a call that its tool choice demands."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import msgspec
from llm_engine.errors import InvalidRequest
from llm_engine.grammar.schema_limits import subschemas
from llm_engine.grammar.spec import GrammarSpec
from llm_engine.sampling_params import SamplingParams

from llm_stack_server.errors import InvalidField, UnsupportedField
from llm_stack_server.output_formats.format import Format
from llm_stack_server.output_formats.parser import Thinking, thinking_after
from llm_stack_server.schemas.structured import StructuredFields, backend_of, grammar_field, grammar_of
from llm_stack_server.tool_use import ToolUse

_MOST_CALLS = 8
_FINAL_CHANNEL = "<|channel|>final<|message|>"


@dataclass(frozen=True, slots=True)
class Constraint:
    """A grammar and the field of the client that it came from."""

    grammar: GrammarSpec
    field: str


def constraint(
    body: StructuredFields | None, output_format: Format | None, use: ToolUse, prompt: str
) -> Constraint | None:
    """What the request's answers must look like; None: anything.

    Where the prompt leaves the model within its thinking, the constraint begins behind it. Where the model is
    free to begin it, it may, if its mark is one token; the constraint begins behind it then, else at once.

    Raises:
        InvalidField: the fields exclude each other.
        UnsupportedField: a call cannot be demanded of this model.
    """
    opens, after = _thinking(output_format, prompt)
    field = None if body is None else grammar_field(body)
    if use.must_call:
        if field is not None:
            raise InvalidField(field, f"{field}: tool_choice demands a call, which has a form of its own")
        calls = _calls(output_format, use)
        grammar = msgspec.structs.replace(calls, opens=opens, after=after, backend=backend_of(body))
        return Constraint(grammar, "tool_choice")
    if field is None or body is None:
        return None
    wanted = grammar_of(body, after)
    if wanted is None:
        return None
    return Constraint(msgspec.structs.replace(wanted, opens=opens, backend=backend_of(body)), field)


def constrained(params: SamplingParams, wanted: Constraint) -> SamplingParams:
    """The parameters with the grammar.

    Raises:
        InvalidField: another parameter excludes it.
    """
    try:
        return replace(params, grammar=wanted.grammar)
    except InvalidRequest as error:
        raise InvalidField(error.field, f"{error.field}: {error.message}") from None


def _thinking(output_format: Format | None, prompt: str) -> tuple[str, str]:
    """What opens the model's thinking, where it is free to do so, and what ends it."""
    if output_format is None:
        return "", ""
    if output_format.answer is not None:
        return "", _FINAL_CHANNEL
    if output_format.reasoning is None:
        return "", ""
    start, end = output_format.reasoning
    match thinking_after(output_format, prompt):
        case Thinking.OPEN:
            return "", end
        case Thinking.FREE:
            return start.rstrip(), end
    return "", ""


def _calls(output_format: Format | None, use: ToolUse) -> GrammarSpec:
    """One call, or up to some, in the form that the model's family writes."""
    form = None if output_format is None else output_format.demanded
    if form is None:
        raise UnsupportedField("tool_choice", "tool_choice: calls of this model's format cannot be demanded")
    options: list[dict[str, Any]] = []
    arguments: dict[str, Any] = {}
    for index, (name, schema) in enumerate(use.for_parser.parameters.items()):
        arguments[f"tool{index}"] = _moved(schema or {"type": "object"}, f"#/$defs/tool{index}")
        options.append(
            {
                "type": "object",
                "properties": {
                    form.name_key: {"const": name},
                    form.arguments_key: {"$ref": f"#/$defs/tool{index}"},
                },
                "required": [form.name_key, form.arguments_key],
                "additionalProperties": False,
            }
        )
    document = {"type": "json_schema", "json_schema": {"anyOf": options, "$defs": arguments}}
    call = [*_text(form.call_start), document, *_text(form.call_end)]
    another = _sequence([*_text(form.separator), *call])
    more = [] if use.single else [{"type": "repeat", "min": 0, "max": _MOST_CALLS - 1, "content": another}]
    whole = _sequence([*_text(form.before), *call, *more, *_text(form.behind)])
    tag = {"type": "structural_tag", "format": whole}
    return GrammarSpec(kind="structural_tag", text=json.dumps(tag, ensure_ascii=False))


def _moved(schema: Mapping[str, Any], place: str) -> dict[str, Any]:
    """A copy of a schema that stands at a place of another one; its references are to its own parts."""
    moved: dict[str, Any] = json.loads(json.dumps(dict(schema)))
    for part, _ in subschemas(moved):
        target = part.get("$ref")
        if isinstance(target, str) and target.startswith("#"):
            part["$ref"] = place + target[1:]
    return moved


def _sequence(elements: list[dict[str, Any]]) -> dict[str, Any]:
    return {"type": "sequence", "elements": elements}


def _text(text: str) -> list[dict[str, Any]]:
    return [{"type": "const_string", "value": text}] if text else []
