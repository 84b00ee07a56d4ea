"""Anthropic's message format: blocks of content, and the events that build them. Knows nothing of HTTP."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field

from llm_engine.outputs import RequestDelta

from llm_stack_server.generation import ChoiceDelta, Usage
from llm_stack_server.output_formats.events import (
    Arguments,
    CallEnd,
    CallStart,
    OutputEvent,
    Reasoning,
    Text,
)
from llm_stack_server.prompt_caching import CachePlan
from llm_stack_server.views.choice_reader import ChoiceReader
from llm_stack_server.views.view import Event


def usage_of(usage: Usage, plan: CachePlan) -> Event:
    """Anthropic's ``usage``: input tokens are those neither found in the cache nor put there to stay."""
    created = plan.created(usage.cached_tokens, usage.pinned_tokens)
    total = sum(created.values())
    return {
        "input_tokens": usage.prompt_tokens - usage.cached_tokens - total,
        "cache_read_input_tokens": usage.cached_tokens,
        "cache_creation_input_tokens": total,
        "cache_creation": {f"ephemeral_{ttl}_input_tokens": tokens for ttl, tokens in created.items()},
        "output_tokens": usage.completion_tokens,
    }


@dataclass(slots=True)
class _Block:
    kind: str
    index: int
    start: Event
    text: list[str] = field(default_factory=list)


class MessagesView:
    """Shows a generation as one message. One object serves one request."""

    def __init__(
        self, message_id: str, model: str, reader: ChoiceReader, usage: Usage, plan: CachePlan
    ) -> None:
        """``usage`` is the generation's own: its prompt is counted when the first delta is there."""
        self._message_id = message_id
        self._model = model
        self._reader = reader
        self._usage = usage
        self._plan = plan
        self._open: _Block | None = None
        self._blocks: list[_Block] = []
        self._stop_reason: str | None = None
        self._stop_sequence: str | None = None

    def opening(self) -> Iterable[Event]:
        """The message without content."""
        yield {
            "type": "message_start",
            "message": self._message([], {**usage_of(self._usage, self._plan), "output_tokens": 0}),
        }
        yield {"type": "ping"}

    def chunks(self, event: ChoiceDelta) -> Iterable[Event]:
        """Events of one delta; a block begins with its first content."""
        for piece in self._reader.read(event.delta):
            yield from self._events(piece)
        self._note_end(event.delta)

    def closing(self, usage: Usage) -> Iterable[Event]:
        """The end of the open block and of the message."""
        yield from self._close()
        ending = {"stop_reason": self._stop_reason, "stop_sequence": self._stop_sequence}
        yield {"type": "message_delta", "delta": ending, "usage": usage_of(usage, self._plan)}
        yield {"type": "message_stop"}

    def add(self, event: ChoiceDelta) -> None:
        """Join the delta to its block, as a client joins the events."""
        for _ in self.chunks(event):
            pass

    def whole(self, usage: Usage) -> Event:
        """The message."""
        return self._message([_whole(block) for block in self._blocks], usage_of(usage, self._plan))

    def _message(self, content: list[Event], usage: Event) -> Event:
        return {
            "id": self._message_id,
            "type": "message",
            "role": "assistant",
            "model": self._model,
            "content": content,
            "stop_reason": self._stop_reason,
            "stop_sequence": self._stop_sequence,
            "usage": usage,
        }

    def _events(self, piece: OutputEvent) -> Iterable[Event]:
        match piece:
            case Text(text):
                yield from self._more("text", {"type": "text", "text": ""}, "text_delta", "text", text)
            case Reasoning(text):
                empty = {"type": "thinking", "thinking": "", "signature": ""}
                yield from self._more("thinking", empty, "thinking_delta", "thinking", text)
            case CallStart(call, name):
                yield from self._close()
                call_id = self._reader.call_id(call)
                yield self._begin("tool_use", {"type": "tool_use", "id": call_id, "name": name, "input": {}})
            case Arguments(_, text):
                yield self._delta("input_json_delta", "partial_json", text)
            case CallEnd():
                yield from self._close()

    def _more(self, kind: str, empty: Event, delta: str, key: str, text: str) -> Iterable[Event]:
        """More of a block of text, which begins where another kind is open. None is empty."""
        if self._open is None or self._open.kind != kind:
            yield from self._close()
            if self._blocks:
                text = text.lstrip()  # it parted two texts, which are now two blocks
            if not text:
                return
            yield self._begin(kind, empty)
        yield self._delta(delta, key, text)

    def _begin(self, kind: str, start: Event) -> Event:
        self._open = _Block(kind, len(self._blocks), start)
        self._blocks.append(self._open)
        return {"type": "content_block_start", "index": self._open.index, "content_block": dict(start)}

    def _delta(self, delta: str, key: str, text: str) -> Event:
        assert self._open is not None
        self._open.text.append(text)
        return {"type": "content_block_delta", "index": self._open.index, "delta": {"type": delta, key: text}}

    def _close(self) -> Iterable[Event]:
        if self._open is not None:
            yield {"type": "content_block_stop", "index": self._open.index}
            self._open = None

    def _note_end(self, delta: RequestDelta) -> None:
        if delta.finish_reason is None:
            return
        if delta.finish_reason == "length":
            self._stop_reason = "max_tokens"
        elif isinstance(delta.stop_reason, str):
            self._stop_reason, self._stop_sequence = "stop_sequence", delta.stop_reason
        else:
            called = self._reader.finish_reason(delta) == "tool_calls"
            self._stop_reason = "tool_use" if called else "end_turn"


def _whole(block: _Block) -> Event:
    text = "".join(block.text)
    if block.kind != "tool_use":
        return {**block.start, block.kind: text}
    try:
        arguments = json.loads(text)
    except ValueError:
        arguments = None
    if isinstance(arguments, dict):
        return {**block.start, "input": arguments}
    return {**block.start, "partial_json": text}  # cut off, or written wrongly: nothing is made up
