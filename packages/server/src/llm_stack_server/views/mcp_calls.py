"""OpenAI's response items of MCP: lists of tools, calls, requests for approval. Knows not the protocol."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from llm_stack_server.output_formats.events import Arguments, CallEnd, CallStart, OutputEvent
from llm_stack_server.views.choice_reader import ChoiceReader
from llm_stack_server.views.responses import ResponsesView
from llm_stack_server.views.tokens import TokenTexts
from llm_stack_server.views.view import Event

_CALL, _REQUEST = "mcp_call", "mcp_approval_request"


@dataclass(frozen=True, slots=True)
class WrittenCall:
    """A call that the model wrote and that has not run."""

    item: Event
    index: int


@dataclass(frozen=True, slots=True)
class CalledTool:
    """What the view must know of a tool."""

    label: str
    needs_approval: bool


class McpResponsesView(ResponsesView):
    """Shows several generations, with the calls between them, as one response."""

    def __init__(
        self,
        head: Event,
        texts: TokenTexts,
        tools: Mapping[str, CalledTool],
        reader: ChoiceReader,
        *,
        logprobs: bool,
    ) -> None:
        """Show calls of ``tools`` as MCP's; others are functions of the client."""
        super().__init__(head, reader, texts, logprobs=logprobs)
        self._tools = tools
        self._written: list[WrittenCall] = []

    @property
    def output(self) -> Sequence[Event]:
        """The items so far."""
        return self._output

    def next_round(self, reader: ChoiceReader) -> None:
        """What follows comes from another generation."""
        self._reader = reader

    def take_calls(self) -> list[WrittenCall]:
        """The calls that wait to be run, once."""
        written, self._written = self._written, []
        return written

    def listed(self, label: str, tools: Sequence[Mapping[str, Any]]) -> Iterable[Event]:
        """The tools of a server."""
        head = {"id": _new_id("mcpl"), "type": "mcp_list_tools", "server_label": label}
        index = len(self._output)
        yield self._event("response.output_item.added", output_index=index, item={**head, "tools": []})
        place = {"item_id": head["id"], "output_index": index}
        yield self._event("response.mcp_list_tools.in_progress", **place)
        yield self._event("response.mcp_list_tools.completed", **place)
        item = {**head, "tools": list(tools), "error": None}
        self._output.append(item)
        yield self._event("response.output_item.done", output_index=index, item=item)

    def approved(self, request: Event) -> Iterable[Event]:
        """A call that the client has approved, before it runs."""
        yield from self._begin_call(request["server_label"], request["name"], request["id"])
        self._opened().text.append(request["arguments"])
        yield self._item_event("response.mcp_call_arguments.delta", delta=request["arguments"])
        yield from self._close()

    def ran(self, call: WrittenCall, output: str | None, error: str | None) -> Iterable[Event]:
        """The end of a call."""
        call.item["output"], call.item["error"] = output, error
        call.item["status"] = "completed" if error is None else "failed"
        kind = f"response.mcp_call.{call.item['status']}"
        yield self._event(kind, item_id=call.item["id"], output_index=call.index)
        yield self._event("response.output_item.done", output_index=call.index, item=dict(call.item))

    def _other(self, piece: OutputEvent) -> Iterable[Event]:
        kind = self._open.kind if self._open is not None else ""
        match piece:
            case CallStart(_, name) if name in self._tools:
                yield from self._close()
                tool = self._tools[name]
                if tool.needs_approval:
                    yield from self._begin_request(tool.label, name)
                else:
                    yield from self._begin_call(tool.label, name, None)
            case Arguments(_, text) if kind in (_CALL, _REQUEST):
                self._opened().text.append(text)
                if kind == _CALL:
                    yield self._item_event("response.mcp_call_arguments.delta", delta=text)
            case CallEnd() if kind in (_CALL, _REQUEST):
                yield from self._close()
            case _:
                yield from super()._other(piece)

    def _begin_call(self, label: str, name: str, approval_id: str | None) -> Iterable[Event]:
        more = {"server_label": label, "name": name, "arguments": "", "output": None, "error": None}
        yield from self._begin(_CALL, "mcp", {**more, "approval_request_id": approval_id})
        yield self._item_event("response.mcp_call.in_progress")

    def _begin_request(self, label: str, name: str) -> Iterable[Event]:
        """An approval is asked for with the whole call, so nothing is shown yet."""
        item = {"id": _new_id("mcpr"), "type": _REQUEST, "server_label": label, "name": name}
        self._hold(_REQUEST, item)
        return ()

    def _close(self, *, is_whole: bool = True) -> Iterable[Event]:
        opened = self._open
        if opened is None or opened.kind not in (_CALL, _REQUEST):
            yield from super()._close(is_whole=is_whole)
            return
        self._open = None
        opened.item["arguments"] = text = "".join(opened.text)
        place = {"output_index": opened.index}
        if opened.kind == _REQUEST:
            if is_whole:  # half a call cannot be approved
                self._output.append(opened.item)
                yield self._event("response.output_item.added", **place, item=dict(opened.item))
                yield self._event("response.output_item.done", **place, item=dict(opened.item))
            return
        self._output.append(opened.item)
        yield self._event(
            "response.mcp_call_arguments.done", item_id=opened.item["id"], **place, arguments=text
        )
        if is_whole:
            self._written.append(WrittenCall(opened.item, opened.index))
        else:
            opened.item["status"] = "incomplete"
            yield self._event("response.output_item.done", **place, item=dict(opened.item))


def _new_id(prefix: str) -> str:
    return f"{prefix}_{secrets.token_hex(16)}"
