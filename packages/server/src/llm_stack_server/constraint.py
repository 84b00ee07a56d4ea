"""What constrains the answers of a request: its format fields, or a call that its tool choice demands."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace

from llm_engine.errors import InvalidRequest
from llm_engine.grammar.spec import GrammarSpec
from llm_engine.sampling_params import SamplingParams

from llm_stack_server.errors import InvalidField, UnsupportedField
from llm_stack_server.output_formats.format import Format
from llm_stack_server.output_formats.parser import Thinking, thinking_after
from llm_stack_server.schemas.structured import StructuredFields, grammar_field, grammar_of
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

    Where the prompt leaves the model within its thinking, the constraint begins behind it; elsewhere the
    model cannot think before a constrained answer.

    Raises:
        InvalidField: the fields exclude each other.
        UnsupportedField: a call cannot be demanded of this model.
    """
    after = _begins_after(output_format, prompt)
    field = None if body is None else grammar_field(body)
    if use.must_call:
        if field is not None:
            raise InvalidField(field, f"{field}: tool_choice demands a call, which has a form of its own")
        return Constraint(_calls(output_format, use, after), "tool_choice")
    if field is None or body is None:
        return None
    grammar = grammar_of(body, after)
    return None if grammar is None else Constraint(grammar, field)


def constrained(params: SamplingParams, wanted: Constraint) -> SamplingParams:
    """The parameters with the grammar.

    Raises:
        InvalidField: another parameter excludes it.
    """
    try:
        return replace(params, grammar=wanted.grammar)
    except InvalidRequest as error:
        raise InvalidField(error.field, f"{error.field}: {error.message}") from None


def _begins_after(output_format: Format | None, prompt: str) -> str:
    if output_format is None:
        return ""
    if output_format.answer is not None:
        return _FINAL_CHANNEL
    if output_format.reasoning is None or thinking_after(output_format, prompt) is not Thinking.OPEN:
        return ""
    return output_format.reasoning[1]


def _calls(output_format: Format | None, use: ToolUse, after: str) -> GrammarSpec:
    """One call, or up to some, in the form that the model's family writes."""
    form = None if output_format is None else output_format.demanded
    if form is None:
        raise UnsupportedField("tool_choice", "tool_choice: calls of this model's format cannot be demanded")
    options = [
        {
            "type": "object",
            "properties": {form.name_key: {"const": name}, form.arguments_key: schema or {"type": "object"}},
            "required": [form.name_key, form.arguments_key],
            "additionalProperties": False,
        }
        for name, schema in use.for_parser.parameters.items()
    ]
    more = "" if use.single else f" ({_text(form.separator)} call){{0,{_MOST_CALLS - 1}}}"
    lines = [
        f"start: {_text(form.before)} call{more} {_text(form.behind)}",
        f"call: {_text(form.call_start)} object {_text(form.call_end)}",
        f"object: %json {json.dumps({'anyOf': options})}",
    ]
    return GrammarSpec(kind="grammar", text="\n".join(lines), after=after)


def _text(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
