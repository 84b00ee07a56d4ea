"""The chat format: chat.completion and chat.completion.chunk. Knows nothing of HTTP or of prompts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from llm_engine.outputs import TokenLogprobs

from llm_stack_server.generation import ChoiceDelta, Usage
from llm_stack_server.views.tokens import TokenTexts
from llm_stack_server.views.view import Envelope, Event

_CHUNK = "chat.completion.chunk"
_WHOLE = "chat.completion"


@dataclass(slots=True)
class _Choice:
    text: list[str] = field(default_factory=list)
    logprobs: list[Event] = field(default_factory=list)
    finish_reason: str | None = None
    stop_reason: str | int | None = None


class ChatView:
    """Shows a generation as chat. One object serves one request."""

    def __init__(
        self, envelope: Envelope, texts: TokenTexts, *, num_choices: int, logprobs: bool, include_usage: bool
    ) -> None:
        self._envelope = envelope
        self._texts = texts
        self._choices = [_Choice() for _ in range(num_choices)]
        self._want_logprobs = logprobs
        self._include_usage = include_usage

    def opening(self) -> Iterable[Event]:
        """The role of every choice."""
        for index in range(len(self._choices)):
            yield self._chunk(index, {"role": "assistant", "content": ""})

    def chunks(self, event: ChoiceDelta) -> Iterable[Event]:
        """Text and logprobs, then the end of the choice in a chunk of its own."""
        delta = event.delta
        entries = self._entries(delta.logprobs)
        if delta.text or entries:
            yield self._chunk(event.choice, {"content": delta.text}, logprobs=entries)
        if delta.finish_reason is not None:
            yield self._chunk(
                event.choice, {}, finish_reason=delta.finish_reason, stop_reason=delta.stop_reason
            )

    def closing(self, usage: Usage) -> Iterable[Event]:
        """The usage, where it was asked for."""
        if self._include_usage:
            yield self._envelope.wrap(_CHUNK, [], usage=usage.as_json())

    def add(self, event: ChoiceDelta) -> None:
        """Join the delta to its choice."""
        choice, delta = self._choices[event.choice], event.delta
        choice.text.append(delta.text)
        choice.logprobs.extend(self._entries(delta.logprobs))
        if delta.finish_reason is not None:
            choice.finish_reason, choice.stop_reason = delta.finish_reason, delta.stop_reason

    def whole(self, usage: Usage) -> Event:
        """A chat.completion."""
        choices = [self._whole_choice(index, choice) for index, choice in enumerate(self._choices)]
        return self._envelope.wrap(_WHOLE, choices, usage=usage.as_json())

    def _whole_choice(self, index: int, choice: _Choice) -> Event:
        return {
            "index": index,
            "message": {"role": "assistant", "content": "".join(choice.text), "refusal": None},
            "logprobs": self._logprobs(choice.logprobs),
            "finish_reason": choice.finish_reason,
            "stop_reason": choice.stop_reason,
        }

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
