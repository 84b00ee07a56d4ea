"""The chat format: chat.completion and chat.completion.chunk. Knows nothing of HTTP or of prompts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from llm_engine.outputs import TokenLogprobs

from llm_stack_server.generation import ChoiceDelta, Usage
from llm_stack_server.output_formats.events import Arguments, CallStart, OutputEvent, Reasoning, Text
from llm_stack_server.views.choice_reader import ChoiceReader
from llm_stack_server.views.text_template import TextTemplate
from llm_stack_server.views.tokens import TokenTexts
from llm_stack_server.views.view import Chunk, Envelope, Event

_CHUNK = "chat.completion.chunk"
_WHOLE = "chat.completion"


@dataclass(slots=True)
class _Choice:
    text: list[str] = field(default_factory=list)
    reasoning: list[str] = field(default_factory=list)
    calls: list[Event] = field(default_factory=list)
    logprobs: list[Event] = field(default_factory=list)
    finish_reason: str | None = None
    stop_reason: str | int | None = None


class ChatView:
    """Shows a generation as chat. One object serves one request."""

    def __init__(
        self,
        envelope: Envelope,
        texts: TokenTexts,
        readers: Sequence[ChoiceReader],
        *,
        logprobs: bool,
        include_usage: bool,
    ) -> None:
        """Show as many choices as there are ``readers``."""
        self._envelope = envelope
        self._texts = texts
        self._readers = readers
        self._choices = [_Choice() for _ in readers]
        self._templates: dict[int, TextTemplate] = {}
        self._want_logprobs = logprobs
        self._include_usage = include_usage

    def opening(self) -> Iterable[Event]:
        """The role of every choice."""
        for index in range(len(self._choices)):
            yield self._chunk(index, {"role": "assistant", "content": ""})

    def chunks(self, event: ChoiceDelta) -> Iterable[Chunk]:
        """A chunk a piece, the logprobs with the first, then the end of the choice in a chunk of its own."""
        delta, reader = event.delta, self._readers[event.choice]
        entries = self._entries(delta.logprobs) if delta.logprobs else []
        for piece in reader.read(delta):
            if isinstance(piece, Text) and not entries:
                yield self._text_chunk(event.choice, piece.text)
                continue
            shown = self._shown(reader, piece)
            if shown is not None:
                yield self._chunk(event.choice, shown, logprobs=entries)
                entries = []
        if entries:
            yield self._chunk(event.choice, {"content": ""}, logprobs=entries)
        if delta.finish_reason is not None:
            yield self._chunk(
                event.choice,
                {},
                finish_reason=reader.finish_reason(delta),
                stop_reason=delta.stop_reason,
            )

    def closing(self, usage: Usage) -> Iterable[Event]:
        """The usage, where it was asked for."""
        if self._include_usage:
            yield self._envelope.wrap(_CHUNK, [], usage=usage.as_json())

    def add(self, event: ChoiceDelta) -> None:
        """Join the delta to its choice."""
        choice, delta, reader = self._choices[event.choice], event.delta, self._readers[event.choice]
        for piece in reader.read(delta):
            match piece:
                case Text(text):
                    choice.text.append(text)
                case Reasoning(text):
                    choice.reasoning.append(text)
                case CallStart(call, name):
                    choice.calls.append(_call(reader, call, name))
                case Arguments(call, text):
                    choice.calls[call]["function"]["arguments"] += text
        choice.logprobs.extend(self._entries(delta.logprobs))
        if delta.finish_reason is not None:
            choice.finish_reason, choice.stop_reason = reader.finish_reason(delta), delta.stop_reason

    def whole(self, usage: Usage) -> Event:
        """A chat.completion."""
        choices = [self._whole_choice(index, choice) for index, choice in enumerate(self._choices)]
        return self._envelope.wrap(_WHOLE, choices, usage=usage.as_json())

    def _whole_choice(self, index: int, choice: _Choice) -> Event:
        text = "".join(choice.text)
        message: Event = {
            "role": "assistant",
            "content": text or (None if choice.calls else ""),
            "refusal": None,
        }
        if choice.reasoning:
            message["reasoning_content"] = "".join(choice.reasoning)
        if choice.calls:
            message["tool_calls"] = choice.calls
        return {
            "index": index,
            "message": message,
            "logprobs": self._logprobs(choice.logprobs),
            "finish_reason": choice.finish_reason,
            "stop_reason": choice.stop_reason,
        }

    def _shown(self, reader: ChoiceReader, piece: OutputEvent) -> Event | None:
        """The ``delta`` of a piece; the end of a call shows nothing."""
        match piece:
            case Text(text):
                return {"content": text}
            case Reasoning(text):
                return {"reasoning_content": text}
            case CallStart(call, name):
                return {"tool_calls": [{"index": call, **_call(reader, call, name)}]}
            case Arguments(call, text):
                return {"tool_calls": [{"index": call, "function": {"arguments": text}}]}
        return None

    def _text_chunk(self, index: int, text: str) -> bytes:
        """More text, without logprobs: what most chunks are."""
        template = self._templates.get(index)
        if template is None:
            template = TextTemplate(lambda text: self._chunk(index, {"content": text}))
            self._templates[index] = template
        return template.fill(text)

    def _chunk(
        self,
        index: int,
        delta: Event,
        *,
        logprobs: list[Event] | None = None,
        finish_reason: str | None = None,
        stop_reason: str | int | None = None,
    ) -> Event:
        choice: dict[str, Any] = {
            "index": index,
            "delta": delta,
            "logprobs": self._logprobs(logprobs) if logprobs else None,
            "finish_reason": finish_reason,
        }
        if finish_reason is not None:
            choice["stop_reason"] = stop_reason
        usage = {"usage": None} if self._include_usage else {}
        return self._envelope.wrap(_CHUNK, [choice], **usage)

    def _logprobs(self, entries: list[Event]) -> Event | None:
        return {"content": entries, "refusal": None} if self._want_logprobs else None

    def _entries(self, logprobs: Sequence[TokenLogprobs] | None) -> list[Event]:
        return [
            {
                **self._entry(entry.token_id, entry.logprob),
                "top_logprobs": [self._entry(token_id, logprob) for token_id, logprob in entry.top],
            }
            for entry in logprobs or ()
        ]

    def _entry(self, token_id: int, logprob: float) -> Event:
        text, raw = self._texts.show(token_id)
        return {"token": text, "logprob": logprob, "bytes": list(raw)}


def _call(reader: ChoiceReader, call: int, name: str) -> Event:
    return {"id": reader.call_id(call), "type": "function", "function": {"name": name, "arguments": ""}}
