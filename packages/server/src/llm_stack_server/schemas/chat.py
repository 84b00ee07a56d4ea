"""The body of /v1/chat/completions and its messages."""

from __future__ import annotations

import json
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, ModelWrapValidatorHandler, PrivateAttr, model_validator

from llm_stack_server.errors import UnsupportedField
from llm_stack_server.schemas.fields import MAX_THINKING_TOKENS, Effort, Int64, RequestBody
from llm_stack_server.schemas.sampling import SamplingFields
from llm_stack_server.schemas.tools import ToolChoice, ToolList, check_names

MAX_TOP_LOGPROBS = 20


def _content_text(value: object) -> str | None:
    if value is None or isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise ValueError("must be a string or a list of parts")
    return "\n".join(_part_text(part, index) for index, part in enumerate(value))


def _part_text(part: object, index: int) -> str:
    if not isinstance(part, dict):
        raise ValueError(f"part {index} must be an object")
    kind = part.get("type")
    if kind != "text":
        raise ValueError(
            f"part {index} has type {str(kind)[:40]!r}; this model takes parts of type 'text' only"
        )
    text = part.get("text")
    if not isinstance(text, str):
        raise ValueError(f"part {index} needs a string 'text'")
    return text


def _arguments_text(value: object) -> object:
    return json.dumps(value, ensure_ascii=False) if isinstance(value, dict) else value


# Clients replay what they were answered; these keys carry nothing that a template shows.
_REPLAYED = frozenset({"refusal", "annotations", "audio", "function_call"})
_PART_FIELDS = frozenset({"type", "text"})


class ToolFunction(RequestBody):
    """The function of a past tool call; ``arguments`` is JSON text, as OpenAI has it, or an object."""

    name: str
    arguments: Annotated[
        str, BeforeValidator(_arguments_text, json_schema_input_type=str | dict[str, Any])
    ] = "{}"


class ToolCall(RequestBody):
    """A tool call of an earlier assistant turn."""

    neutral_fields: ClassVar[frozenset[str]] = frozenset({"index"})

    id: str | None = None
    type: Literal["function"] = "function"
    function: ToolFunction


class ChatMessage(RequestBody):
    """One turn. Text parts are joined with a newline."""

    neutral_fields: ClassVar[frozenset[str]] = _REPLAYED

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Annotated[
        str | None,
        BeforeValidator(_content_text, json_schema_input_type=str | list[dict[str, Any]] | None),
    ] = None
    name: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None  # the same under another name
    _part_fields: list[str] = PrivateAttr(default_factory=list)

    @model_validator(mode="wrap")
    @classmethod
    def _keep_part_fields(cls, value: object, handler: ModelWrapValidatorHandler[ChatMessage]) -> ChatMessage:
        """Parts become text, so their unknown fields are noted before."""
        message = handler(value)
        content = value.get("content") if isinstance(value, dict) else None
        if isinstance(content, list):
            message._part_fields = [
                f"content[{index}].{name}"
                for index, part in enumerate(content)
                for name, given in part.items()
                if name not in _PART_FIELDS and given is not None
            ]
        return message

    def unknown(self) -> list[str]:
        """Its own unknown fields and those of its parts; an empty list says nothing."""
        extra = self.model_extra or {}
        return [name for name in super().unknown() if extra[name] != []] + self._part_fields

    @model_validator(mode="after")
    def _has_content(self) -> ChatMessage:
        if self.content is None and self.role != "assistant":
            raise ValueError(f"a message of role {self.role!r} needs content")
        return self

    def for_template(self) -> dict[str, Any]:
        """The message as chat templates expect it: tool arguments as objects, absent fields left out."""
        message: dict[str, Any] = {"role": self.role, "content": self.content or ""}
        for key in ("name", "tool_call_id"):
            if (value := getattr(self, key)) is not None:
                message[key] = value
        thought = self.reasoning_content if self.reasoning_content is not None else self.reasoning
        if thought is not None:
            message["reasoning_content"] = thought
        if self.tool_calls:
            message["tool_calls"] = [_template_call(call) for call in self.tool_calls]
        return message


def _template_call(call: ToolCall) -> dict[str, Any]:
    try:
        arguments = json.loads(call.function.arguments)
    except ValueError:
        arguments = (
            call.function.arguments
        )  # a template may print text as well; a model may have written bad JSON
    function = {"name": call.function.name, "arguments": arguments}
    return {"id": call.id, "type": "function", "function": function}


class TemplateFields(RequestBody):
    """What steers the chat template."""

    messages: Annotated[list[ChatMessage], Field(min_length=1)]
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None


class ChatRequest(SamplingFields, TemplateFields):
    """The body of ``POST /v1/chat/completions``."""

    max_completion_tokens: Int64 | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_TOP_LOGPROBS)] | None = None
    tools: ToolList | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    reasoning_effort: Effort | None = None
    thinking_token_budget: Annotated[int, Field(ge=0, le=MAX_THINKING_TOKENS)] | None = None

    @model_validator(mode="after")
    def _tools_fit(self) -> ChatRequest:
        check_names(tool.function.name for tool in self.tools or [])
        return self


def refuse_replayed(messages: list[ChatMessage]) -> None:
    """Refuse what a client replays and a template would lose.

    Raises:
        UnsupportedField: a replayed key of a message holds something.
    """
    for index, message in enumerate(messages):
        for name, value in (message.model_extra or {}).items():
            if name in _REPLAYED and value not in (None, []):
                raise UnsupportedField(f"messages[{index}].{name}")
