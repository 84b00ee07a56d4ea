"""Owns the chat templates of a tokenizer: choice, compiling, rendering. Knows nothing of token ids."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import jinja2

from llm_tokenizer.arguments import check_flag, check_text
from llm_tokenizer.chat_messages import (
    CONTINUE_MARK,
    checked_messages,
    checked_objects,
    mark_final_text,
    plain_argument,
)
from llm_tokenizer.errors import InvalidArgument, TemplateError
from llm_tokenizer.template_limits import Limits
from llm_tokenizer.template_sandbox import Refused, TemplateSandbox

_MAX_COMPILED = 64


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

    @property
    def sources(self) -> Mapping[str, str]:
        """Sources by name."""
        return dict(self._sources)

    def render(
        self,
        messages: Sequence[Any],
        *,
        tools: Sequence[Any] | None,
        documents: Sequence[Any] | None,
        add_generation_prompt: bool,
        continue_final_message: bool | str,
        template: str | None,
        variables: Mapping[str, Any],
        now: datetime | None = None,
    ) -> str:
        """See `Tokenizer.render_chat`."""
        check_flag("add_generation_prompt", add_generation_prompt)
        if not isinstance(continue_final_message, str):
            check_flag("continue_final_message", continue_final_message)
        if template is not None:
            check_text("template", template)
        if continue_final_message and add_generation_prompt:
            raise InvalidArgument(
                "continue_final_message", "excludes add_generation_prompt; set that one to False"
            )
        if not (now is None or isinstance(now, datetime)):
            raise InvalidArgument("now", f"must be a datetime, is {type(now).__name__}")
        chat = checked_messages(messages)
        source = self._choose(template, with_tools=tools is not None)
        context = {
            **self._special_tokens,
            **{name: plain_argument(name, value) for name, value in variables.items()},
            "messages": chat,
            "tools": checked_objects("tools", tools),
            "documents": checked_objects("documents", documents),
            "add_generation_prompt": add_generation_prompt,
        }
        if not continue_final_message:
            return self._run(source, context, now)
        key = continue_final_message if isinstance(continue_final_message, str) else "content"
        final_text = mark_final_text(chat, key, source)
        return _cut_at_mark(self._run(source, context, now), final_text)

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

    def _run(self, source: str, context: Mapping[str, Any], now: datetime | None) -> str:
        template = self._compile(source)
        try:
            return self._sandbox.run(template, context, now)
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


def _cut_at_mark(rendered: str, final_text: str) -> str:
    at = rendered.rfind(CONTINUE_MARK.strip())
    if at < 0 or final_text.strip() not in rendered:
        raise TemplateError("the chat template leaves out the final message, so it cannot be continued")
    if rendered.startswith(CONTINUE_MARK, at):
        return rendered[:at]
    # The template trims messages: what it would have taken off the end of this one is taken off here.
    return rendered[:at].rstrip()
