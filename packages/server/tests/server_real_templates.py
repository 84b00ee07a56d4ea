"""Real chat templates, and what a model that follows one writes: what its history shows of a turn."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from llm_stack_server.output_formats import events
from llm_stack_server.output_formats.calls import Tools
from llm_stack_server.output_formats.format import Format
from llm_stack_server.output_formats.parser import OutputParser, Thinking
from llm_tokenizer.chat_template import ChatTemplates

_NAMED = os.environ.get("LLM_STACK_TEST_ASSETS")
_ASSETS = Path(_NAMED) if _NAMED else Path.home() / ".cache" / "llm-stack" / "test-assets"
FOLDER = _ASSETS / "llama-cpp" / "templates"

SEARCH: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "search",
        "description": "Finds pages.",
        "parameters": {
            "type": "object",
            "properties": {
                "query": {"type": "string"},
                "limit": {"type": "integer"},
                "kinds": {"type": "array", "items": {"type": "string"}},
                "options": {"type": "object", "properties": {"fuzzy": {"type": ["boolean", "null"]}}},
                "since": {"anyOf": [{"type": "string"}, {"type": "null"}]},
            },
            "required": ["query"],
        },
    },
}
ARGUMENTS = {
    "query": 'Brno "café" <b>\n2 \\d',
    "limit": 5,
    "kinds": ["page", "note"],
    "options": {"fuzzy": None},
    "since": None,
}
TOOLS = Tools({"search": SEARCH["function"]["parameters"]})
_PROMPT_THINKING = (
    "</think>",
    "<think>",
    "<|END_THINKING|>",
    "<|START_THINKING|>",
    "<think",
    "<channel|>",
    "<|channel>thought",
    "<|open|>think<|sep|>",
    "</think:opensource>",
    "<think:opensource>",
)


def template(name: str) -> str:
    """The source; without it the test fails in CI and is skipped elsewhere."""
    path = FOLDER / f"{name}.jinja"
    if path.exists():
        return path.read_text()
    reason = f"{path} is not there; fetch it with: python scripts/fetch_test_assets.py"
    if os.environ.get("CI") == "true":
        pytest.fail(reason)
    pytest.skip(reason)


def written_turn(source: str) -> str:
    """The text of an assistant's turn that calls `search`, with the marks of the turn's end behind it."""
    templates = ChatTemplates({"default": source}, {"bos_token": "<s>", "eos_token": "</s>"})
    user = {"role": "user", "content": "hi"}
    function = {"name": "search", "arguments": ARGUMENTS}
    call = {"id": "call00001", "type": "function", "function": function}
    turn = {"role": "assistant", "content": "", "tool_calls": [call]}

    def render(messages: list[Any], *, prompt: bool) -> str:
        return templates.render(
            messages,
            tools=[SEARCH],
            documents=None,
            add_generation_prompt=prompt,
            continue_final_message=False,
            template=None,
            variables={},
        )

    head = render([user], prompt=True).rstrip()
    for mark in _PROMPT_THINKING:  # histories leave out what the prompt says of thinking
        head = head.removesuffix(mark).rstrip()
    whole = render([user, turn], prompt=False)
    assert whole.startswith(head)
    return whole[len(head) :]


def joined(found: list[events.OutputEvent]) -> dict[str, Any]:
    """Events as a whole answer; a call is [name, arguments, is whole]."""
    answer: dict[str, Any] = {"text": "", "reasoning": "", "calls": []}
    for event in found:
        match event:
            case events.Text(text):
                answer["text"] += text
            case events.Reasoning(text):
                answer["reasoning"] += text
            case events.CallStart(_, name):
                answer["calls"].append([name, "", False])
            case events.Arguments(call, text):
                answer["calls"][call][1] += text
            case events.CallEnd(call):
                answer["calls"][call][2] = True
    return answer


def read(
    output_format: Format,
    text: str,
    cuts: list[int] | int = 0,
    *,
    tools: Tools = TOOLS,
    thinking: Thinking = Thinking.FREE,
) -> dict[str, Any]:
    """The answer that `text` is, fed in pieces of a size or cut at places."""
    if isinstance(cuts, int):
        cuts = list(range(cuts, len(text), cuts)) if cuts else []
    parser = OutputParser(output_format, tools, thinking)
    found: list[events.OutputEvent] = []
    for begin, end in zip([0, *cuts], [*cuts, len(text)], strict=True):
        found += parser.feed(text[begin:end])
    return joined([*found, *parser.finish()])
