"""The messages of gpt-oss: ``<|channel|>NAME<|message|>...``, with calls addressed to functions.

Source: OpenAI's description of the harmony response format.
"""

from __future__ import annotations

import re

from llm_stack_server.output_formats.calls import Calls
from llm_stack_server.output_formats.json_text import Malformed, json_value
from llm_stack_server.output_formats.reader import Reader, Reading, drop
from llm_stack_server.output_formats.sinks import TextSink

_RECIPIENT = re.compile(r"\bto=([^\s<]+)")
_CHANNEL = re.compile(r"<\|channel\|>\s*(\w+)")
_MESSAGE = "<|message|>"
_ENDS = ("<|end|>", "<|call|>", "<|return|>", "<|start|>")
_HEAD_STARTS = ("<|channel|>", "<|start|>", " to=")


def harmony_answer(reader: Reader, calls: Calls, content: TextSink, thinking: TextSink) -> Reading[None]:
    """All messages of an answer: analysis is thinking, the rest text; a recipient makes it a call."""
    while (yield from reader.available()):
        head = yield from _head(reader)
        if head is None:
            if (yield from reader.until(_ENDS, content.text)) is None:
                return
            continue
        channel, recipient = head
        if recipient is not None:
            content.skip_space()
            yield from _call(reader, calls, recipient)
        elif channel == "analysis":
            yield from reader.until(_ENDS, thinking.text)
            thinking.skip_space()
        else:
            yield from reader.until(_ENDS, content.text)


def _head(reader: Reader) -> Reading[tuple[str, str | None] | None]:
    """Channel and recipient of the next message; None where its text begins without a head."""
    first = ""
    for start in _HEAD_STARTS:
        if (yield from reader.accept(start)):
            first = start
            break
    if not first:
        return None
    parts = [first]
    if (yield from reader.until((_MESSAGE,), parts.append)) is None:
        return "", None
    head = "".join(parts)
    channel, recipient = _CHANNEL.search(head), _RECIPIENT.search(head)
    name = recipient[1] if recipient is not None else ""
    is_call = name not in ("", "assistant", "user", "all")
    return (channel[1] if channel is not None else ""), (name.removeprefix("functions.") if is_call else None)


def _call(reader: Reader, calls: Calls, name: str) -> Reading[None]:
    calls.start(name)
    try:
        yield from json_value(reader, calls.arguments)
    except Malformed:
        yield from reader.until(_ENDS, calls.arguments)
        calls.give_up()
        return
    calls.end()
    yield from reader.until(_ENDS, drop)
