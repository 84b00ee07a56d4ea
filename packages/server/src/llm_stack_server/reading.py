"""How the answers of a request are read: by the model's format, or as plain text."""

from __future__ import annotations

from llm_stack_server.generation import Usage
from llm_stack_server.output_formats.format import Format
from llm_stack_server.output_formats.parser import OutputParser, thinking_after
from llm_stack_server.output_formats.plain import PlainText
from llm_stack_server.prompts import Prompt
from llm_stack_server.tool_use import ToolUse
from llm_stack_server.views.choice_reader import ChoiceReader


def choice_reader(output_format: Format | None, use: ToolUse, prompt: Prompt, usage: Usage) -> ChoiceReader:
    """A reader of one choice, which counts its thinking into ``usage``."""
    if output_format is None:
        return ChoiceReader(PlainText(), usage)
    thinking = thinking_after(output_format, prompt.text or "")
    parser = OutputParser(output_format, use.for_parser, thinking)
    return ChoiceReader(parser, usage, single_call=use.single, short_call_ids=output_format.short_call_ids)


def shows_marks(output_format: Format | None, use: ToolUse) -> bool:
    """Whether special tokens must stay in the text, since marks that count may be among them."""
    if output_format is None:
        return False
    return bool(use.for_template or output_format.reasoning or output_format.answer)
