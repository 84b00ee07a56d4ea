"""The loop of a response with MCP tools: model, calls, results, model again. Knows not HTTP nor bodies."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from llm_stack_server.errors import InvalidField
from llm_stack_server.generation import Generation, Usage
from llm_stack_server.mcp_tools.remote import AllowedServers, CallResult, RemoteTool
from llm_stack_server.schemas.mcp import McpTool
from llm_stack_server.schemas.responses import Item
from llm_stack_server.views.choice_reader import ChoiceReader
from llm_stack_server.views.mcp_calls import McpResponsesView, WrittenCall
from llm_stack_server.views.view import Event

MOST_CALLS = 32
_DECLINED = "The user did not allow this call."


class RoundMaker(Protocol):
    """Makes one generation over the conversation so far."""

    async def __call__(
        self, items: Sequence[Item], *, is_first: bool, may_call: bool
    ) -> tuple[Generation, ChoiceReader]:
        """A checked generation and the reader of its one choice; see `McpRounds` for the arguments."""
        ...


@dataclass(slots=True)
class McpRounds:
    """Runs a response to its end. Iterate `events` once; await `start` before to learn of a refusal.

    Attributes:
        view: Shows it.
        usage: Tokens of all rounds.
        make: Makes the generation of each round.
        servers: Runs the calls.
        tools: The request's servers by label.
        listed: Their tools by label.
        items: The conversation that is answered.
        first: The first round, not begun; it is made anew where calls come before it.
        most_calls: Calls beyond these are not run, and the model goes on without tools.
    """

    view: McpResponsesView
    usage: Usage
    make: RoundMaker
    servers: AllowedServers
    tools: Mapping[str, McpTool]
    listed: Mapping[str, Sequence[RemoteTool]]
    items: Sequence[Item]
    first: tuple[Generation, ChoiceReader] | None
    most_calls: int = MOST_CALLS
    _num_calls: int = 0

    def check(self) -> None:
        """Look at the approvals.

        Raises:
            InvalidField: one is of no request, or its server is not among the tools.
        """
        self._approved()

    async def start(self) -> None:
        """Wait for the first token, unless calls come before it."""
        if self.first is not None and not self._approved():
            await self.first[0].start()

    async def aclose(self) -> None:
        """End what was started and will not be iterated."""
        if self.first is not None:
            await self.first[0].aclose()

    async def whole(self) -> Event:
        """The response, from the same events that a stream would send."""
        events = self.events()
        try:
            async for _ in events:
                pass
        finally:
            await events.aclose()
        return self.view.whole(self.usage)

    async def events(self) -> AsyncGenerator[Event, None]:
        """All events."""
        view = self.view
        for event in view.opening():
            yield event
        for label, tools in self.listed.items():
            for event in view.listed(label, [tool.shown for tool in tools]):
                yield event
        approved = self._approved()
        if approved:
            self.first = None
        for request in approved:
            for event in view.approved(request):
                yield event
        async for event in self._run_calls():
            yield event
        is_first = True
        while True:
            generation, reader = self.first or await self._make(is_first=is_first)
            self.first, is_first = None, False
            view.next_round(reader)
            before = len(view.output)
            deltas = generation.deltas()
            try:
                async for delta in deltas:
                    for event in view.chunks(delta):
                        yield event
            finally:
                await deltas.aclose()
            has_called = False
            async for event in self._run_calls():
                has_called = True
                yield event
            waits = any(
                item["type"] in ("function_call", "mcp_approval_request") for item in view.output[before:]
            )
            if not has_called or waits:
                break
        for event in view.closing(self.usage):
            yield event

    async def _make(self, *, is_first: bool) -> tuple[Generation, ChoiceReader]:
        output = [Item.model_validate(item) for item in self.view.output]
        items = written_out([*self.items, *output])
        return await self.make(items, is_first=is_first, may_call=self._num_calls < self.most_calls)

    async def _run_calls(self) -> AsyncGenerator[Event, None]:
        """Run what the model has written, side by side; the results come in the order of the calls."""
        calls = self.view.take_calls()
        for call, result in zip(calls, await asyncio.gather(*map(self._run, calls)), strict=True):
            for event in self.view.ran(call, result.output, result.error):
                yield event

    async def _run(self, call: WrittenCall) -> CallResult:
        self._num_calls += 1
        if self._num_calls > self.most_calls:
            return CallResult(None, f"not run: the request allows {self.most_calls} calls")
        item = call.item
        return await self.servers.call(self.tools[item["server_label"]], item["name"], item["arguments"])

    def _approved(self) -> list[Event]:
        """The calls that the client has approved and that have not run."""
        calls = (item.model_extra or {} for item in self.items if item.type == "mcp_call")
        done = {extra.get("approval_request_id") for extra in calls}
        found = []
        for item in self.items:
            extra = item.model_extra or {}
            if item.type != "mcp_approval_response" or extra.get("approve") is not True:
                continue
            request = _request(self.items, extra.get("approval_request_id"))
            if request["server_label"] not in self.tools:
                label = request["server_label"]
                raise InvalidField("tools", f"tools: the server {label!r} of an approval is not among them")
            if request["id"] not in done:
                found.append(request)
        return found


def written_out(items: Sequence[Item]) -> list[Item]:
    """The conversation without items of MCP: calls and results are those of functions."""
    plain: list[Item] = []
    for item in items:
        extra = item.model_extra or {}
        if item.type == "mcp_call":
            error = extra.get("error")
            output = item.output if error is None else f"Error: {error}"
            plain += _pair(extra.get("id", ""), item, output or "")
        elif item.type == "mcp_approval_response" and extra.get("approve") is not True:
            request_id = extra.get("approval_request_id")
            request = next((one for one in items if _is_request(one, request_id)), None)
            if request is not None:
                plain += _pair(str(request_id), request, _DECLINED)
        elif not item.type.startswith("mcp_"):
            plain.append(item)
    return plain


def _pair(call_id: str, call: Item, output: object) -> list[Item]:
    written = Item(type="function_call", call_id=call_id, name=call.name, arguments=call.arguments or "{}")
    return [written, Item(type="function_call_output", call_id=call_id, output=str(output))]


def _is_request(item: Item, request_id: object) -> bool:
    return item.type == "mcp_approval_request" and (item.model_extra or {}).get("id") == request_id


def _request(items: Sequence[Item], request_id: object) -> Event:
    found = next((item for item in items if _is_request(item, request_id)), None)
    if found is None:
        raise InvalidField(
            "input",
            f"input: approval_request_id {str(request_id)[:100]!r} is no request of this conversation",
        )
    label = (found.model_extra or {}).get("server_label")
    return {"id": request_id, "server_label": label, "name": found.name, "arguments": found.arguments or "{}"}
