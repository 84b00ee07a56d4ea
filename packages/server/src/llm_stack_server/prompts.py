"""Turns messages, texts and token lists into token ids. Knows nothing of sampling or of answers."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from llm_stack_server.engine_port import Engine, TextCodec
from llm_stack_server.errors import InvalidField
from llm_stack_server.plain_marks import PlainMarks
from llm_stack_server.schemas.chat import ChatMessage
from llm_stack_server.schemas.completion import PromptItem

# Names that the renderer itself sets; a request must not replace them through chat_template_kwargs.
_RESERVED_VARIABLES = frozenset(
    {
        "messages",
        "tools",
        "documents",
        "template",
        "chat_template",
        "add_generation_prompt",
        "continue_final_message",
        "bos_token",
        "eos_token",
        "pad_token",
        "unk_token",
        "tokenize",
        "self",
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """One prompt, ready for the engine.

    Attributes:
        token_ids: Its token ids, not checked yet.
        text: The text it came from, or None where the client gave ids.
    """

    token_ids: list[int]
    text: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatOptions:
    """What steers the template; None stands for the default."""

    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    variables: dict[str, Any] | None = None
    tools: Sequence[dict[str, Any]] = ()


async def chat_prompt(engine: Engine, messages: Sequence[ChatMessage], options: ChatOptions) -> Prompt:
    """Render and encode a conversation, off the event loop.

    Raises:
        InvalidField: no template, clashing flags, reserved variables.
        llm_tokenizer.TemplateError: the template refuses the messages.
    """
    template = engine.tokenizer.chat_template
    if template is None:
        raise InvalidField(
            "messages", "this model has no chat template; use /v1/completions", code="no_chat_template"
        )
    continue_final = bool(options.continue_final_message)
    add_generation = options.add_generation_prompt
    if add_generation is None:
        add_generation = not continue_final
    _check_template_flags(messages, options, add_generation, continue_final)
    rendered = [message.for_template() for message in messages]
    if "developer" not in template:  # older templates know only 'system'
        rendered = [{**turn, "role": "system"} if turn["role"] == "developer" else turn for turn in rendered]
    variables = dict(options.variables or {})
    if options.tools:
        variables["tools"] = list(options.tools)
    return await asyncio.to_thread(
        _render, engine.tokenizer, rendered, add_generation, continue_final, variables
    )


def _render(
    codec: TextCodec,
    messages: list[dict[str, Any]],
    add_generation: bool,
    continue_final: bool,
    variables: dict[str, Any],
) -> Prompt:
    marks = PlainMarks(codec)
    # What the model wrote itself may hold marks that its template looks for.
    turns = [
        turn if turn["role"] == "assistant" else {**turn, "content": marks.hide(turn["content"])}
        for turn in messages
    ]
    printed = codec.render_chat(
        turns, add_generation_prompt=add_generation, continue_final_message=continue_final, **variables
    )
    token_ids, text = marks.encode(printed)
    return Prompt(token_ids=token_ids, text=text)


def _check_template_flags(
    messages: Sequence[ChatMessage], options: ChatOptions, add_generation: bool, continue_final: bool
) -> None:
    if continue_final and add_generation:
        raise InvalidField(
            "continue_final_message", "continue_final_message and add_generation_prompt must not both be true"
        )
    if continue_final and messages[-1].role != "assistant":
        raise InvalidField(
            "continue_final_message", "continue_final_message needs a last message of role 'assistant'"
        )
    reserved = _RESERVED_VARIABLES.intersection(options.variables or ())
    if reserved:
        name = min(reserved)
        raise InvalidField("chat_template_kwargs", f"chat_template_kwargs must not set {name!r}")


async def completion_prompts(
    engine: Engine, items: Sequence[PromptItem], *, add_special_tokens: bool
) -> list[Prompt]:
    """Encode every prompt, off the event loop. An empty text stays empty, so that it can be refused."""
    return await asyncio.to_thread(_encode_all, engine, items, add_special_tokens)


def _encode_all(engine: Engine, items: Sequence[PromptItem], add_special_tokens: bool) -> list[Prompt]:
    return [_encode(engine, item, add_special_tokens) for item in items]


def _encode(engine: Engine, item: PromptItem, add_special_tokens: bool) -> Prompt:
    if not isinstance(item, str):
        return Prompt(token_ids=item)
    if not item:
        return Prompt(token_ids=[], text=item)
    return Prompt(token_ids=engine.tokenizer.encode(item, add_special_tokens=add_special_tokens), text=item)
