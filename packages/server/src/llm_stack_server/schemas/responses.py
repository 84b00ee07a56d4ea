"""The body of OpenAI's /v1/responses, and its input items as chat turns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, model_validator

from llm_stack_server.errors import InvalidField, UnsupportedField
from llm_stack_server.schemas.chat import ChatMessage, ToolCall, ToolFunction
from llm_stack_server.schemas.fields import CacheSalt, Effort, Finite, Int64, RequestBody
from llm_stack_server.schemas.mcp import McpTool
from llm_stack_server.schemas.sampling import StreamOptions
from llm_stack_server.schemas.structured import JsonSchemaFormat, ResponseFormat
from llm_stack_server.schemas.tools import (
    MAX_TOOLS,
    FunctionSpec,
    NamedFunction,
    NamedToolChoice,
    Tool,
    ToolChoice,
    check_names,
    checked_parameters,
)

MAX_TOP_LOGPROBS = 20
MAX_METADATA = 16
_TEXT_PARTS = frozenset({"input_text", "output_text", "text", "summary_text", "reasoning_text"})


class Part(RequestBody):
    """A part of a message, of a tool's output or of a reasoning item."""

    # Clients replay what they were answered.
    neutral_fields: ClassVar[frozenset[str]] = frozenset({"annotations", "logprobs"})

    type: str
    text: str | None = None
    refusal: str | None = None


class Item(RequestBody):
    """One input item. Which fields it needs follows from its type."""

    # Replayed, or of the items of MCP.
    neutral_fields: ClassVar[frozenset[str]] = frozenset(
        {
            "id",
            "status",
            "phase",
            "encrypted_content",
            "server_label",
            "tools",
            "error",
            "approve",
            "approval_request_id",
            "reason",
        }
    )

    type: str = "message"
    role: Literal["user", "assistant", "system", "developer"] | None = None
    content: str | list[Part] | None = None
    summary: list[Part] | None = None
    call_id: str | None = None
    name: str | None = None
    arguments: str | None = None
    output: str | list[Part] | None = None

    @model_validator(mode="after")
    def _is_whole(self) -> Item:
        needs = {
            "message": ("role", "content"),
            "function_call": ("call_id", "name", "arguments"),
            "function_call_output": ("call_id", "output"),
        }
        for name in needs.get(self.type, ()):
            if getattr(self, name) is None:
                raise ValueError(f"an item of type {self.type!r} needs {name!r}")
        return self


def _items(value: object) -> object:
    return [{"type": "message", "role": "user", "content": value}] if isinstance(value, str) else value


Items = Annotated[
    list[Item], BeforeValidator(_items, json_schema_input_type=str | list[Item]), Field(min_length=1)
]


class FunctionTool(RequestBody):
    """A function, spelled flat, or a server of tools, whose other fields `McpTool` reads."""

    neutral_fields: ClassVar[frozenset[str]] = frozenset(McpTool.model_fields)

    type: str
    name: Annotated[str, Field(pattern=r"^[a-zA-Z0-9_.\-]{1,128}$")] | None = None
    description: str | None = None
    parameters: Annotated[dict[str, Any] | None, BeforeValidator(checked_parameters)] = None
    strict: bool | None = None


class NamedChoice(RequestBody):
    """``tool_choice`` as an object: this function and no other."""

    type: Literal["function"]
    name: str


class ReasoningOptions(RequestBody):
    """How much the model thinks."""

    effort: Effort | None = None
    summary: Literal["auto", "concise", "detailed"] | None = None


class TextFormat(JsonSchemaFormat):
    """The form of the text; a schema's fields stand beside the type."""

    type: Literal["text", "json_object", "json_schema"]


class TextOptions(RequestBody):
    """What the text is to look like."""

    format: TextFormat | None = None
    verbosity: Literal["low", "medium", "high"] | None = None


class ResponsesRequest(RequestBody):
    """The body of ``POST /v1/responses``."""

    model: str | None = None
    input: Items
    instructions: str | None = None
    previous_response_id: str | None = None
    max_output_tokens: Annotated[int, Field(ge=1)] | None = None
    temperature: Finite | None = None
    top_p: Finite | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_TOP_LOGPROBS)] | None = None
    include: list[str] | None = None
    tools: Annotated[list[FunctionTool], Field(max_length=MAX_TOOLS)] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedChoice | None = None
    parallel_tool_calls: bool | None = None
    max_tool_calls: Annotated[int, Field(ge=1)] | None = None
    reasoning: ReasoningOptions | None = None
    text: TextOptions | None = None
    truncation: Literal["disabled", "auto"] | None = None
    store: bool | None = None
    background: bool | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    metadata: Annotated[dict[str, str], Field(max_length=MAX_METADATA)] | None = None
    seed: Int64 | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    cache_salt: CacheSalt | None = None

    def response_format(self) -> ResponseFormat | None:
        """The form of the text as the chat route has it."""
        given = self.text.format if self.text is not None else None
        if given is None:
            return None
        if given.type == "json_schema" and given.schema_ is None:
            raise InvalidField("text.format.schema", "text.format.schema is required")
        return ResponseFormat(type=given.type, json_schema=given)

    def chat_tools(self) -> list[Tool]:
        """The tools as the chat route has them.

        Raises:
            UnsupportedField: a tool that the server would have to run itself.
        """
        for index, tool in enumerate(self.tools or []):
            if tool.type != "mcp" and (tool.type != "function" or tool.name is None):
                param = f"tools[{index}]"
                raise UnsupportedField(param, f"{param}: only functions with a name and mcp are supported")
        return [
            Tool(
                type="function",
                function=FunctionSpec(
                    name=tool.name or "", description=tool.description, parameters=tool.parameters
                ),
            )
            for tool in self.tools or []
            if tool.type == "function"
        ]

    def chat_choice(self) -> ToolChoice | None:
        """The tool choice as the chat route has it."""
        if isinstance(self.tool_choice, NamedChoice):
            return NamedToolChoice(type="function", function=NamedFunction(name=self.tool_choice.name))
        return self.tool_choice

    @model_validator(mode="after")
    def _tools_fit(self) -> ResponsesRequest:
        check_names(tool.name for tool in self.tools or [] if tool.name is not None)
        return self


def chat_turns(items: Sequence[Item], path: str = "input") -> list[ChatMessage]:
    """Items as turns: reasoning, text and calls that follow each other are one turn of the assistant.

    Raises:
        UnsupportedField: an item or part that the model cannot take, by its place.
    """
    turns: list[ChatMessage] = []
    for index, item in enumerate(items):
        where = f"{path}[{index}]"
        match item.type:
            case "message" if item.role == "assistant":
                _join(turns, ChatMessage(role="assistant", content=_text(item.content, f"{where}.content")))
            case "message":
                assert item.role is not None
                turns.append(ChatMessage(role=item.role, content=_text(item.content, f"{where}.content")))
            case "reasoning":
                thought = _text(item.content or item.summary or [], where)
                _join(turns, ChatMessage(role="assistant", reasoning_content=thought))
            case "function_call":
                function = ToolFunction(name=item.name or "", arguments=item.arguments or "{}")
                _join(
                    turns,
                    ChatMessage(role="assistant", tool_calls=[ToolCall(id=item.call_id, function=function)]),
                )
            case "function_call_output":
                output = _text(item.output, f"{where}.output")
                turns.append(ChatMessage(role="tool", content=output, tool_call_id=item.call_id))
            case _:
                raise UnsupportedField(where, f"{where}: items of type {item.type[:40]!r} are not supported")
    return turns


def _join(turns: list[ChatMessage], more: ChatMessage) -> None:
    """Add to the assistant's turn, or begin one."""
    last = turns[-1] if turns else None
    if (
        last is None
        or last.role != "assistant"
        or (more.reasoning_content and (last.content or last.tool_calls))
    ):
        turns.append(more)
        return
    texts = [text for text in (last.content, more.content) if text]
    turns[-1] = last.model_copy(
        update={
            "content": "\n".join(texts) or None,
            "reasoning_content": (last.reasoning_content or "") + (more.reasoning_content or "") or None,
            "tool_calls": [*(last.tool_calls or []), *(more.tool_calls or [])] or None,
        }
    )


def _text(content: str | list[Part] | None, path: str) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    for index, part in enumerate(content):
        known = part.text is not None if part.type in _TEXT_PARTS else part.type == "refusal"
        if not known:
            where = f"{path}[{index}]"
            raise UnsupportedField(where, f"{where}: this model takes no parts of type {part.type[:40]!r}")
    return "\n".join(part.text or part.refusal or "" for part in content)
