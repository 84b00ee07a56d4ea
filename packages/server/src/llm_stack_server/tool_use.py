"""What a chat request's tools mean: for the template, for the parser, and what cannot be honoured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from llm_stack_server.errors import InvalidField, UnsupportedField
from llm_stack_server.output_formats.calls import Tools
from llm_stack_server.output_formats.format import Format
from llm_stack_server.schemas.tools import NamedToolChoice, Tool, ToolChoice


@dataclass(frozen=True, slots=True)
class ToolUse:
    """The tools that a request may use.

    Attributes:
        for_template: As the chat template takes them; empty where none may be called.
        for_parser: As the parser takes them.
        single: At most one call is answered.
        must_call: The answer must be calls.
    """

    for_template: list[dict[str, Any]] = field(default_factory=list)
    for_parser: Tools = field(default_factory=Tools)
    single: bool = False
    must_call: bool = False


def tool_use(
    tools: Sequence[Tool], choice: ToolChoice | None, output_format: Format | None, *, single: bool
) -> ToolUse:
    """Check the tools of a request.

    With ``tool_choice`` "none" the model does not see the tools, so that it cannot call one.

    Raises:
        InvalidField: a choice without tools, or of a tool that is not there.
        UnsupportedField: the model writes no tool calls that are known.
    """
    _check_choice(tools, choice)
    if not tools or choice == "none":
        return ToolUse()
    if output_format is None or not output_format.writes_calls:
        raise UnsupportedField(
            "tools",
            "the model's chat template shows no form of tool calls that is known; "
            "start the server with --output-format, or set tool_choice to 'none'",
        )
    named = choice.function.name if isinstance(choice, NamedToolChoice) else None
    wanted = [tool for tool in tools if named in (None, tool.function.name)]
    return ToolUse(
        for_template=[tool.for_template() for tool in tools],
        for_parser=Tools({tool.function.name: tool.function.parameters or {} for tool in wanted}),
        single=single or named is not None,
        must_call=choice not in (None, "auto"),
    )


def _check_choice(tools: Sequence[Tool], choice: ToolChoice | None) -> None:
    names = {tool.function.name for tool in tools}
    if choice == "required" and not names:
        raise InvalidField("tool_choice", "tool_choice: 'required' needs tools")
    if isinstance(choice, NamedToolChoice) and choice.function.name not in names:
        raise InvalidField(
            "tool_choice", f"tool_choice: there is no tool named {choice.function.name[:100]!r}"
        )
