"""The completions format: text_completion, with echo. Knows nothing of HTTP or of chat."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from llm_engine.outputs import TokenLogprobs

from llm_stack_server.generation import ChoiceDelta, Usage
from llm_stack_server.views.text_template import TextTemplate
from llm_stack_server.views.tokens import TextOffsets, TokenTexts
from llm_stack_server.views.view import Chunk, Envelope, Event

_KIND = "text_completion"


@dataclass(frozen=True, slots=True, kw_only=True)
class EchoPrompt:
    """A prompt that is repeated before the answer."""

    token_ids: list[int]
    text: str


@dataclass(slots=True)
class _Logprobs:
    """The completions format's four parallel lists."""

    tokens: list[str] = field(default_factory=list)
    token_logprobs: list[float | None] = field(default_factory=list)
    top_logprobs: list[dict[str, float] | None] = field(default_factory=list)
    text_offset: list[int] = field(default_factory=list)

    def extend(self, other: _Logprobs) -> None:
        self.tokens += other.tokens
        self.token_logprobs += other.token_logprobs
        self.top_logprobs += other.top_logprobs
        self.text_offset += other.text_offset

    def as_json(self) -> Event:
        return {
            "tokens": self.tokens,
            "token_logprobs": self.token_logprobs,
            "top_logprobs": self.top_logprobs,
            "text_offset": self.text_offset,
        }


@dataclass(slots=True)
class _Choice:
    offsets: TextOffsets
    opened: bool = False
    text: list[str] = field(default_factory=list)
    logprobs: _Logprobs = field(default_factory=_Logprobs)
    finish_reason: str | None = None
    stop_reason: str | int | None = None


@dataclass(frozen=True, slots=True)
class _Piece:
    """What one delta adds to a choice, the echoed prompt included."""

    choice: int
    text: str
    logprobs: _Logprobs
    finish_reason: str | None
    stop_reason: str | int | None


class CompletionView:
    """Shows a generation as completions. One object serves one request.

    Args:
        envelope: What all chunks share.
        texts: Shows tokens.
        num_choices: Of all prompts together.
        hidden: Token ids that the text leaves out.
        logprobs: Whether logprobs were asked for.
        include_usage: Whether a stream ends with a usage chunk.
        echo: The prompts to repeat, or None.
    """

    def __init__(
        self,
        envelope: Envelope,
        texts: TokenTexts,
        *,
        num_choices: int,
        hidden: frozenset[int],
        logprobs: bool,
        include_usage: bool,
        echo: Sequence[EchoPrompt] | None = None,
    ) -> None:
        self._envelope = envelope
        self._texts = texts
        self._want_logprobs = logprobs
        self._include_usage = include_usage
        self._echo = echo
        self._choices = [_Choice(TextOffsets(texts, hidden)) for _ in range(num_choices)]
        self._templates: dict[int, TextTemplate] = {}
        # Only the first choice of a prompt brings the prompt's logprobs; its siblings wait for them.
        self._prompt_logprobs: dict[int, Sequence[TokenLogprobs | None]] = {}
        self._held: dict[int, list[ChoiceDelta]] = {}

    def opening(self) -> Iterable[Event]:
        """Nothing: completions have no role."""
        return ()

    def chunks(self, event: ChoiceDelta) -> Iterable[Chunk]:
        """Text and logprobs, then the end of the choice in a chunk of its own."""
        for piece in self._pieces(event):
            if piece.text and not self._want_logprobs:
                yield self._text_chunk(piece.choice, piece.text)
            elif piece.text or piece.logprobs.tokens:
                yield self._chunk(piece.choice, piece.text, piece.logprobs)
            if piece.finish_reason is not None:
                yield self._chunk(
                    piece.choice, "", None, finish_reason=piece.finish_reason, stop_reason=piece.stop_reason
                )

    def closing(self, usage: Usage) -> Iterable[Event]:
        """The usage, where it was asked for."""
        if self._include_usage:
            yield self._envelope.wrap(_KIND, [], usage=usage.as_json())

    def add(self, event: ChoiceDelta) -> None:
        """Join the delta to its choice."""
        for piece in self._pieces(event):
            choice = self._choices[piece.choice]
            choice.text.append(piece.text)
            choice.logprobs.extend(piece.logprobs)
            if piece.finish_reason is not None:
                choice.finish_reason, choice.stop_reason = piece.finish_reason, piece.stop_reason

    def whole(self, usage: Usage) -> Event:
        """A text_completion."""
        choices = [
            {
                "index": index,
                "text": "".join(choice.text),
                "logprobs": choice.logprobs.as_json() if self._want_logprobs else None,
                "finish_reason": choice.finish_reason,
                "stop_reason": choice.stop_reason,
            }
            for index, choice in enumerate(self._choices)
        ]
        return self._envelope.wrap(_KIND, choices, usage=usage.as_json())

    def _text_chunk(self, index: int, text: str) -> bytes:
        """More text, without logprobs: what most chunks are."""
        template = self._templates.get(index)
        if template is None:
            template = TextTemplate(lambda text: self._chunk(index, text, None))
            self._templates[index] = template
        return template.fill(text)

    def _chunk(
        self,
        index: int,
        text: str,
        logprobs: _Logprobs | None,
        *,
        finish_reason: str | None = None,
        stop_reason: str | int | None = None,
    ) -> Event:
        choice: dict[str, Any] = {
            "index": index,
            "text": text,
            "logprobs": logprobs.as_json() if self._want_logprobs and logprobs is not None else None,
            "finish_reason": finish_reason,
        }
        if finish_reason is not None:
            choice["stop_reason"] = stop_reason
        usage = {"usage": None} if self._include_usage else {}
        return self._envelope.wrap(_KIND, [choice], **usage)

    def _pieces(self, event: ChoiceDelta) -> list[_Piece]:
        """The pieces that may be shown now: this delta's, and those that waited for it."""
        if self._echo is None or not self._want_logprobs:
            return [self._piece(event)]
        if event.delta.prompt_logprobs is not None:
            self._prompt_logprobs[event.prompt] = event.delta.prompt_logprobs
        if event.prompt not in self._prompt_logprobs:
            self._held.setdefault(event.prompt, []).append(event)
            return []
        waiting = self._held.pop(event.prompt, [])
        return [self._piece(held) for held in (*waiting, event)]

    def _piece(self, event: ChoiceDelta) -> _Piece:
        delta, choice = event.delta, self._choices[event.choice]
        text, logprobs = delta.text, _Logprobs()
        if self._echo is not None and not choice.opened:
            prompt = self._echo[event.prompt]
            text = prompt.text + text
            if self._want_logprobs:
                logprobs = self._lists(choice, prompt.token_ids, self._prompt_logprobs[event.prompt])
        choice.opened = True
        if delta.logprobs is not None:
            logprobs.extend(self._lists(choice, delta.token_ids, delta.logprobs))
        return _Piece(event.choice, text, logprobs, delta.finish_reason, delta.stop_reason)

    def _lists(
        self, choice: _Choice, token_ids: Sequence[int], entries: Sequence[TokenLogprobs | None]
    ) -> _Logprobs:
        lists = _Logprobs()
        for token_id, entry in zip(token_ids, entries, strict=True):
            lists.tokens.append(self._texts.text(token_id))
            lists.token_logprobs.append(None if entry is None else entry.logprob)
            lists.top_logprobs.append(None if entry is None else self._top(entry))
            lists.text_offset.append(choice.offsets.place(token_id))
        return lists

    def _top(self, entry: TokenLogprobs) -> dict[str, float]:
        """The alternatives by text, and always the token itself, as OpenAI's format has it."""
        top = {self._texts.text(token_id): logprob for token_id, logprob in entry.top}
        top.setdefault(self._texts.text(entry.token_id), entry.logprob)
        return top
