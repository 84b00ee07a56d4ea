"""The fields that say what an answer must look like, in every spelling, as one grammar."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

from llm_engine.grammar.spec import GrammarSpec
from pydantic import Field

from llm_stack_server.errors import InvalidField, UnsupportedField
from llm_stack_server.schemas.fields import RequestBody

Schema = dict[str, Any] | bool
_ONE_OF = ("json", "json_object", "regex", "choice", "grammar", "structural_tag")
# What back ends are called, here and by other servers.
BackendName = Literal["auto", "llguidance", "guidance", "xgrammar"]
_BACKENDS: dict[BackendName, str] = {
    "auto": "",
    "llguidance": "llguidance",
    "guidance": "llguidance",
    "xgrammar": "xgrammar",
}


class JsonSchemaFormat(RequestBody):
    """``response_format.json_schema``. Schemas are always enforced, whatever ``strict`` says."""

    name: str | None = None
    description: str | None = None
    schema_: Annotated[Schema | None, Field(alias="schema")] = None
    strict: bool | None = None


class ResponseFormat(RequestBody):
    """``response_format``. Of a structural tag, ``format`` or ``structures`` and ``triggers``."""

    type: Literal["text", "json_object", "json_schema", "structural_tag"]
    json_schema: JsonSchemaFormat | None = None
    format: dict[str, Any] | None = None
    structures: list[dict[str, Any]] | None = None
    triggers: list[str] | None = None

    def unknown(self) -> list[str]:
        """Its unknown fields; a structural tag goes to the back end whole."""
        return [] if self.type == "structural_tag" else super().unknown()


class StructuredOutputs(RequestBody):
    """``structured_outputs``: exactly one of its fields."""

    json_: Annotated[Schema | str | None, Field(alias="json")] = None
    json_object: bool | None = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    structural_tag: dict[str, Any] | str | None = None


class StructuredFields(RequestBody):
    """What chat and completions take."""

    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: Schema | str | None = None
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    guided_grammar: str | None = None
    guided_decoding_backend: BackendName | None = None


def grammar_field(body: StructuredFields) -> str | None:
    """The one field that constrains the answer; None where none does.

    Raises:
        InvalidField: two fields do.
    """
    names = (name for name in StructuredFields.model_fields if name != "guided_decoding_backend")
    found = [name for name in names if getattr(body, name) is not None]
    if body.response_format is not None and body.response_format.type == "text":
        found.remove("response_format")
    if len(found) > 1:
        raise InvalidField(found[1], f"{found[1]}: {found[0]} says already what the answer must look like")
    return found[0] if found else None


def backend_of(body: StructuredFields | None) -> str:
    """The back end that a body names; "": the engine's default."""
    return "" if body is None else _BACKENDS[body.guided_decoding_backend or "auto"]


def grammar_of(body: StructuredFields, after: str) -> GrammarSpec | None:
    """The grammar that a body asks for; None where it asks for none.

    Args:
        body: Of any route that takes these fields.
        after: The text behind which the constraint begins; "" from the start.

    Raises:
        InvalidField: fields that exclude each other, or a format without its schema.
        UnsupportedField: an option that cannot be honoured.
    """
    match grammar_field(body):
        case None:
            return None
        case "response_format":
            assert body.response_format is not None
            return _of_format(body.response_format, after)
        case "structured_outputs":
            assert body.structured_outputs is not None
            return _of_structured(body.structured_outputs, after)
        case "guided_json":
            return _json_schema(body.guided_json, after)
        case "guided_regex":
            return GrammarSpec(kind="regex", text=body.guided_regex or "", after=after)
        case "guided_choice":
            return GrammarSpec(kind="choice", text=json.dumps(body.guided_choice), after=after)
        case _:
            return GrammarSpec(kind="grammar", text=body.guided_grammar or "", after=after)


def _of_format(wanted: ResponseFormat, after: str) -> GrammarSpec:
    if wanted.type == "json_object":
        return GrammarSpec(kind="json_object", after=after)
    if wanted.type == "structural_tag":
        tag = wanted.model_dump(include={"type", "format", "structures", "triggers"}, exclude_none=True)
        return GrammarSpec(
            kind="structural_tag", text=json.dumps(tag | (wanted.model_extra or {})), after=after
        )
    if wanted.json_schema is None or wanted.json_schema.schema_ is None:
        raise InvalidField(
            "response_format.json_schema.schema", "response_format.json_schema.schema is required"
        )
    return _json_schema(wanted.json_schema.schema_, after)


def _of_structured(wanted: StructuredOutputs, after: str) -> GrammarSpec:
    for name in wanted.model_extra or {}:
        raise UnsupportedField(f"structured_outputs.{name}")
    given = {
        "json": wanted.json_,
        "json_object": wanted.json_object or None,
        "regex": wanted.regex,
        "choice": wanted.choice,
        "grammar": wanted.grammar,
        "structural_tag": wanted.structural_tag,
    }
    kinds = [name for name in _ONE_OF if given[name] is not None]
    if len(kinds) != 1:
        raise InvalidField("structured_outputs", f"structured_outputs: exactly one of {', '.join(_ONE_OF)}")
    match kinds[0]:
        case "json":
            return _json_schema(wanted.json_, after)
        case "json_object":
            return GrammarSpec(kind="json_object", after=after)
        case "regex":
            return GrammarSpec(kind="regex", text=wanted.regex or "", after=after)
        case "choice":
            return GrammarSpec(kind="choice", text=json.dumps(wanted.choice), after=after)
        case "structural_tag":
            tag = wanted.structural_tag
            text = tag if isinstance(tag, str) else json.dumps(tag)
            return GrammarSpec(kind="structural_tag", text=text, after=after)
        case _:
            return GrammarSpec(kind="grammar", text=wanted.grammar or "", after=after)


def _json_schema(schema: Schema | str | None, after: str) -> GrammarSpec:
    text = schema if isinstance(schema, str) else json.dumps(schema)
    return GrammarSpec(kind="json_schema", text=text, after=after)
