"""OpenAI's response format: output items, and the events that build them. Knows nothing of HTTP."""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from llm_engine.outputs import TokenLogprobs

from llm_stack_server.errors import ApiError
from llm_stack_server.generation import ChoiceDelta, Usage
from llm_stack_server.output_formats.events import (
    Arguments,
    CallEnd,
    CallStart,
    OutputEvent,
    Reasoning,
    Text,
)
from llm_stack_server.views.choice_reader import ChoiceReader
from llm_stack_server.views.tokens import TokenTexts
from llm_stack_server.views.view import Event


def usage_of(usage: Usage) -> Event:
    """The ``usage`` of a response."""
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }


@dataclass(slots=True)
class _Open:
    """The item that is being built."""

    kind: str
    index: int
    item: Event
    text: list[str] = field(default_factory=list)
    logprobs: list[Event] = field(default_factory=list)


class ResponsesView:
    """Shows a generation as one response. One object serves one request."""

    def __init__(self, head: Event, reader: ChoiceReader, texts: TokenTexts, *, logprobs: bool) -> None:
        """Show the items behind ``head``, the response without its status, output and usage."""
        self._head = head
        self._reader = reader
        self._texts = texts
        self._want_logprobs = logprobs
        self._numbers = itertools.count()
        self._output: list[Event] = []
        self._open: _Open | None = None
        self._waiting: list[Event] = []
        self._status = "in_progress"
        self._reason: str | None = None

    def opening(self) -> Iterable[Event]:
        """The response without content, twice as OpenAI has it."""
        yield self._event("response.created", response=self.response(None))
        yield self._event("response.in_progress", response=self.response(None))

    def chunks(self, event: ChoiceDelta) -> Iterable[Event]:
        """Events of one delta."""
        pieces = self._reader.read(event.delta)
        entries = [*self._waiting, *self._entries(event.delta.logprobs)]
        self._waiting = [] if pieces else entries  # a part of a character shows nothing yet
        for piece in pieces:
            if isinstance(piece, Text):
                yield from self._text(piece.text, entries)
                entries = []
            else:
                yield from self._other(piece)
        if event.delta.finish_reason is not None:
            is_cut = event.delta.finish_reason == "length"
            yield from self._close(is_whole=not is_cut)
            self._status, self._reason = (
                ("incomplete", "max_output_tokens") if is_cut else ("completed", None)
            )

    def closing(self, usage: Usage) -> Iterable[Event]:
        """The end."""
        yield self._event(f"response.{self._status}", response=self.response(usage))

    def failure(self, error: ApiError) -> Event:
        """The end by an error."""
        self._status = "failed"
        return self._event("response.failed", response=self.failed(error))

    def failed(self, error: ApiError) -> Event:
        """The response that ended by an error."""
        self._status = "failed"
        told = {"code": "server_error" if error.status >= 500 else error.code, "message": error.message}
        return {**self.response(None), "error": told}

    def add(self, event: ChoiceDelta) -> None:
        """Join the delta, as a client joins the events."""
        for _ in self.chunks(event):
            pass

    def whole(self, usage: Usage) -> Event:
        """The response."""
        return self.response(usage)

    def response(self, usage: Usage | None, status: str | None = None) -> Event:
        """The response as it stands."""
        return {
            **self._head,
            "status": status or self._status,
            "error": None,
            "incomplete_details": {"reason": self._reason} if self._reason else None,
            "output": list(self._output),
            "usage": usage_of(usage) if usage is not None else None,
        }

    # Items

    def _text(self, text: str, entries: list[Event]) -> Iterable[Event]:
        if self._open is None or self._open.kind != "message":
            yield from self._close()
            if self._output:
                text = text.lstrip()  # it parted two texts, which are now two items
            if not text:
                return
            yield from self._begin("message", "msg", {"role": "assistant", "content": []})
            yield self._part_event("response.content_part.added", self._text_part(""))
        opened = self._opened()
        opened.text.append(text)
        opened.logprobs += entries
        yield self._item_event("response.output_text.delta", content_index=0, delta=text, logprobs=entries)

    def _other(self, piece: OutputEvent) -> Iterable[Event]:
        match piece:
            case Reasoning(text):
                if self._open is None or self._open.kind != "reasoning":
                    yield from self._close()
                    yield from self._begin("reasoning", "rs", {"summary": [], "content": []})
                    yield self._part_event(
                        "response.content_part.added", {"type": "reasoning_text", "text": ""}
                    )
                self._opened().text.append(text)
                yield self._item_event("response.reasoning_text.delta", content_index=0, delta=text)
            case CallStart(call, name):
                yield from self._close()
                call_id = self._reader.call_id(call)
                yield from self._begin(
                    "function_call", "fc", {"call_id": call_id, "name": name, "arguments": ""}
                )
            case Arguments(_, text):
                self._opened().text.append(text)
                yield self._item_event("response.function_call_arguments.delta", delta=text)
            case CallEnd():
                yield from self._close()

    def _begin(self, kind: str, prefix: str, more: Event) -> Iterable[Event]:
        item = {"id": f"{prefix}_{secrets.token_hex(16)}", "type": kind, "status": "in_progress", **more}
        index = self._hold(kind, item)
        yield self._event("response.output_item.added", output_index=index, item=dict(item))

    def _hold(self, kind: str, item: Event) -> int:
        """Open an item without telling of it; its place."""
        self._open = _Open(kind, len(self._output), item)
        return self._open.index

    def _close(self, *, is_whole: bool = True) -> Iterable[Event]:
        """End the open item, if there is one."""
        if self._open is None:
            return
        opened, text = self._open, "".join(self._open.text)
        match opened.kind:
            case "message":
                part = {**self._text_part(text), "logprobs": opened.logprobs}
                yield self._item_event(
                    "response.output_text.done", content_index=0, text=text, logprobs=opened.logprobs
                )
                yield self._part_event("response.content_part.done", part)
                opened.item["content"] = [part]
            case "reasoning":
                part = {"type": "reasoning_text", "text": text}
                yield self._item_event("response.reasoning_text.done", content_index=0, text=text)
                yield self._part_event("response.content_part.done", part)
                opened.item["content"] = [part]
            case _:
                name = opened.item["name"]
                yield self._item_event("response.function_call_arguments.done", name=name, arguments=text)
                opened.item["arguments"] = text
        opened.item["status"] = "completed" if is_whole else "incomplete"
        self._open = None
        self._output.append(opened.item)
        yield self._event("response.output_item.done", output_index=opened.index, item=dict(opened.item))

    def _opened(self) -> _Open:
        assert self._open is not None
        return self._open

    def _text_part(self, text: str) -> Event:
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}

    # Events

    def _part_event(self, kind: str, part: Event) -> Event:
        return self._item_event(kind, content_index=0, part=part)

    def _item_event(self, kind: str, **more: Any) -> Event:  # noqa: ANN401 -- any JSON value
        opened = self._opened()
        return self._event(kind, item_id=opened.item["id"], output_index=opened.index, **more)

    def _event(self, kind: str, **more: Any) -> Event:  # noqa: ANN401 -- any JSON value
        return {"type": kind, "sequence_number": next(self._numbers), **more}

    def _entries(self, logprobs: Sequence[TokenLogprobs] | None) -> list[Event]:
        if not self._want_logprobs:
            return []
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
