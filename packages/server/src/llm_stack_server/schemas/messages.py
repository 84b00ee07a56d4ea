"""The bodies of Anthropic's /v1/messages and /v1/messages/count_tokens, and their turns as chat turns."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, model_validator

from llm_stack_server.errors import UnsupportedField
from llm_stack_server.schemas.chat import ChatMessage, ToolCall, ToolFunction
from llm_stack_server.schemas.fields import (
    MAX_THINKING_TOKENS,
    CacheSalt,
    Finite,
    Int64,
    RequestBody,
    StopStrings,
)
from llm_stack_server.schemas.tools import FunctionSpec, Tool, check_names, checked_parameters

MAX_TOOLS = 128
_SHOWN_BLOCKS = frozenset({"text", "thinking", "redacted_thinking", "tool_use", "tool_result"})


class CacheControl(RequestBody):
    """A mark: what stands up to here is to stay in the cache for a time."""

    type: Literal["ephemeral"]
    ttl: Literal["5m", "1h"] = "5m"


class Block(RequestBody):
    """One block of content. Which fields it needs follows from its type."""

    # Clients replay what they were answered.
    neutral_fields: ClassVar[frozenset[str]] = frozenset({"citations", "signature", "data", "caller"})

    type: str
    text: str | None = None
    thinking: str | None = None
    id: str | None = None
    name: str | None = None
    input: dict[str, Any] | None = None
    tool_use_id: str | None = None
    content: str | list[Block] | None = None
    is_error: bool | None = None
    cache_control: CacheControl | None = None

    @model_validator(mode="after")
    def _is_whole(self) -> Block:
        needs = {
            "text": ("text",),
            "thinking": ("thinking",),
            "tool_use": ("id", "name", "input"),
            "tool_result": ("tool_use_id",),
        }
        for name in needs.get(self.type, ()):
            if getattr(self, name) is None:
                raise ValueError(f"a block of type {self.type!r} needs {name!r}")
        return self


def _blocks(value: object) -> object:
    return [{"type": "text", "text": value}] if isinstance(value, str) else value


Blocks = Annotated[list[Block], BeforeValidator(_blocks, json_schema_input_type=str | list[Block])]


class Message(RequestBody):
    """One turn."""

    role: Literal["user", "assistant", "system"]
    content: Blocks


class AnthropicTool(RequestBody):
    """A tool of the client."""

    name: Annotated[str, Field(pattern=r"^[a-zA-Z0-9_.\-]{1,128}$")]
    type: str | None = None
    description: str | None = None
    input_schema: Annotated[dict[str, Any] | None, BeforeValidator(checked_parameters)] = None
    cache_control: CacheControl | None = None

    def as_tool(self) -> Tool:
        """The same as OpenAI spells it."""
        spec = FunctionSpec(name=self.name, description=self.description, parameters=self.input_schema)
        return Tool(type="function", function=spec)


class ToolChoice(RequestBody):
    """How the model chooses among the tools."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class ThinkingOptions(RequestBody):
    """Whether the model thinks before it answers."""

    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: Annotated[int, Field(ge=1, le=MAX_THINKING_TOKENS)] | None = None


class MessagesPrompt(RequestBody):
    """What makes up the prompt: the body of ``POST /v1/messages/count_tokens``."""

    model: str | None = None
    messages: Annotated[list[Message], Field(min_length=1)]
    system: Blocks | None = None
    tools: Annotated[list[AnthropicTool], Field(max_length=MAX_TOOLS)] | None = None
    tool_choice: ToolChoice | None = None
    thinking: ThinkingOptions | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    cache_control: CacheControl | None = None

    @model_validator(mode="after")
    def _tools_fit(self) -> MessagesPrompt:
        check_names(tool.name for tool in self.tools or [])
        return self

    def chat_turns(self) -> list[ChatMessage]:
        """The conversation as the chat route has it.

        Raises:
            UnsupportedField: a block that the model cannot take, by its place.
        """
        turns: list[ChatMessage] = []
        if self.system:
            turns.append(ChatMessage(role="system", content=_text(self.system, "system")))
        for index, message in enumerate(self.messages):
            turns += _turns(message, f"messages[{index}].content")
        return turns

    def is_continued(self) -> bool:
        """Whether the model is to go on with the last turn rather than to begin one."""
        return self.messages[-1].role == "assistant"


class MessagesRequest(MessagesPrompt):
    """The body of ``POST /v1/messages``."""

    max_tokens: Annotated[int, Field(ge=1)]
    stop_sequences: StopStrings = ()
    temperature: Finite | None = None
    top_p: Finite | None = None
    top_k: Int64 | None = None
    stream: bool | None = None
    cache_salt: CacheSalt | None = None


def _turns(message: Message, path: str) -> Iterator[ChatMessage]:
    """A user's turn may hold results of tools, which are turns of their own and come first."""
    _check_kinds(message.content, path)
    if message.role == "assistant":
        yield _assistant(message, path)
        return
    for block in message.content:
        if block.type == "tool_result":
            result = block.content or ""
            text = result if isinstance(result, str) else _text(result, f"{path}.content")
            yield ChatMessage(role="tool", content=text, tool_call_id=block.tool_use_id)
    own = [block for block in message.content if block.type == "text"]
    if own or not message.content:
        yield ChatMessage(role=message.role, content=_text(own, path))


def _assistant(message: Message, path: str) -> ChatMessage:
    calls = [
        ToolCall(id=block.id, function=ToolFunction(name=block.name or "", arguments=json.dumps(block.input)))
        for block in message.content
        if block.type == "tool_use"
    ]
    thoughts = [block.thinking or "" for block in message.content if block.type == "thinking"]
    return ChatMessage(
        role="assistant",
        content=_text([block for block in message.content if block.type == "text"], path),
        tool_calls=calls or None,
        reasoning_content="".join(thoughts) if thoughts else None,
    )


def _text(blocks: list[Block], path: str) -> str:
    _check_kinds(blocks, path)
    return "\n".join(block.text or "" for block in blocks if block.type == "text")


def _check_kinds(blocks: list[Block], path: str) -> None:
    for index, block in enumerate(blocks):
        if block.type not in _SHOWN_BLOCKS:
            param = f"{path}[{index}]"
            raise UnsupportedField(param, f"{param}: this model takes no blocks of type {block.type[:40]!r}")
