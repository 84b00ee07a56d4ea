"""Owns the chat templates of a tokenizer: choice, checks, rendering. Knows nothing of token ids."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jinja2
import numpy as np

from llm_tokenizer.errors import InvalidArgument, TemplateError
from llm_tokenizer.template_sandbox import Limits, Refused, TemplateSandbox

_MAX_COMPILED = 64
_CONTINUE_MARK = "CONTINUE_FINAL_MESSAGE_TAG "
# Names under which a message's reasoning is passed; the first is the one that templates read most.
_REASONING_KEYS = ("reasoning_content", "thinking", "reasoning")

Message = dict[str, Any]


class ChatTemplates:
    """The named templates of a model. Safe to use from several threads."""

    def __init__(
        self, sources: Mapping[str, str], special_tokens: Mapping[str, str], limits: Limits | None = None
    ) -> None:
        self._sources = dict(sources)
        self._special_tokens = dict(special_tokens)
        self._sandbox = TemplateSandbox(limits or Limits())
        self._compiled: dict[str, jinja2.Template] = {}

    @property
    def default(self) -> str | None:
        """The source that is used unless another is asked for."""
        return self._sources.get("default")

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None,
        documents: Sequence[Mapping[str, Any]] | None,
        add_generation_prompt: bool,
        continue_final_message: bool,
        template: str | None,
        variables: Mapping[str, Any],
    ) -> str:
        """See `Tokenizer.render_chat`."""
        if continue_final_message and add_generation_prompt:
            raise InvalidArgument(
                "continue_final_message", "excludes add_generation_prompt; set that one to False"
            )
        chat = _checked_messages(messages)
        source = self._choose(template, with_tools=tools is not None)
        context = {
            **self._special_tokens,
            **_plain_mapping(variables),
            "messages": chat,
            "tools": _checked_objects("tools", tools),
            "documents": _checked_objects("documents", documents),
            "add_generation_prompt": add_generation_prompt,
        }
        if not continue_final_message:
            return self._run(source, context)
        final_text = _mark_final_text(chat)
        return _cut_at_mark(self._run(source, context), final_text)

    def _choose(self, template: str | None, *, with_tools: bool) -> str:
        if template is not None:
            return self._sources.get(template, template)
        if with_tools and "tool_use" in self._sources:
            return self._sources["tool_use"]
        if "default" in self._sources:
            return self._sources["default"]
        if self._sources:
            names = ", ".join(sorted(self._sources))
            raise TemplateError(f"the model has several chat templates and no default; name one of: {names}")
        raise TemplateError("the model has no chat template; pass one as `template`")

    def _run(self, source: str, context: Mapping[str, Any]) -> str:
        template = self._compile(source)
        try:
            return self._sandbox.run(template, context)
        except Refused as error:
            raise TemplateError(str(error)) from error
        except jinja2.TemplateError as error:
            raise TemplateError(f"the chat template failed: {error}") from error
        except Exception as error:  # a template can raise anything, as TypeError or RecursionError
            raise TemplateError(f"the chat template failed: {type(error).__name__}: {error}") from error

    def _compile(self, source: str) -> jinja2.Template:
        compiled = self._compiled.get(source)
        if compiled is not None:
            return compiled
        try:
            compiled = self._sandbox.from_string(source)
        except jinja2.TemplateSyntaxError as error:
            raise TemplateError(
                f"the chat template is malformed, line {error.lineno}: {error.message}"
            ) from error
        except (jinja2.TemplateError, RecursionError, ValueError, SyntaxError, MemoryError) as error:
            raise TemplateError(f"the chat template cannot be compiled: {error}") from error
        if len(self._compiled) >= _MAX_COMPILED:
            self._compiled.clear()
        self._compiled[source] = compiled
        return compiled


def _checked_messages(messages: Sequence[Mapping[str, Any]]) -> list[Message]:
    """A copy of the messages in plain JSON types, without the keys whose value is `None`."""
    if not isinstance(messages, list | tuple):
        raise InvalidArgument("messages", f"must be a list of objects, is {type(messages).__name__}")
    if not messages:
        raise InvalidArgument("messages", "must not be empty")
    return [_checked_message(index, message) for index, message in enumerate(messages)]


def _checked_message(index: int, message: object) -> Message:
    name = f"messages[{index}]"
    if not isinstance(message, Mapping):
        raise InvalidArgument(name, f"must be an object, is {type(message).__name__}")
    if not isinstance(message.get("role"), str):
        raise InvalidArgument(f"{name}.role", "must be a string")
    content = message.get("content")
    if content is not None and not isinstance(content, str | list | tuple):
        raise InvalidArgument(
            f"{name}.content", f"must be a string or a list of parts, is {type(content).__name__}"
        )
    plain = {key: value for key, value in _plain_mapping(message).items() if value is not None}
    reasoning = next((plain[key] for key in _REASONING_KEYS if key in plain), None)
    if reasoning is None:
        return plain
    return {"thinking": reasoning, **plain, "reasoning_content": reasoning}


def _checked_objects(field: str, values: Sequence[Mapping[str, Any]] | None) -> list[Any] | None:
    if values is None:
        return None
    if not isinstance(values, list | tuple) or not all(isinstance(value, Mapping) for value in values):
        raise InvalidArgument(field, "must be a list of objects")
    return [_plain(value) for value in values]


def _plain_mapping(value: Mapping[str, Any]) -> dict[str, Any]:
    return {str(key): _plain(item) for key, item in value.items()}


def _plain(value: Any) -> Any:  # noqa: ANN401  # any value goes in, any JSON value comes out
    """`value` in exact JSON types: templates must not reach the methods of richer objects."""
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int):
        return int.__int__(value)
    if isinstance(value, float):
        return float.__float__(value)
    if isinstance(value, Mapping):
        return {_plain(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return f"<{type(value).__name__}>"


def _mark_final_text(chat: list[Message]) -> str:
    """Put the mark behind the last message's text, in place; returns that text as it was."""
    field = f"messages[{len(chat) - 1}].content"
    content = chat[-1].get("content")
    if isinstance(content, str):
        chat[-1]["content"] = content + _CONTINUE_MARK
        return content
    for part in reversed(content or []):
        if isinstance(part, dict) and isinstance(part.get("text"), str):
            text: str = part["text"]
            part["text"] = text + _CONTINUE_MARK
            return text
    raise InvalidArgument(field, "has no text that could be continued")


def _cut_at_mark(rendered: str, final_text: str) -> str:
    at = rendered.rfind(_CONTINUE_MARK.strip())
    if at < 0 or final_text.strip() not in rendered:
        raise TemplateError("the chat template leaves out the final message, so it cannot be continued")
    if rendered.startswith(_CONTINUE_MARK, at):
        return rendered[:at]
    # The template trims messages: what it would have taken off the end of this one is taken off here.
    return rendered[:at].rstrip()
