"""Tools of a real MCP server, called in /v1/responses and read by OpenAI's client."""
# ruff: noqa: ASYNC110 -- what is waited for is on the other side of a socket

from __future__ import annotations

import asyncio
import socket
from contextlib import asynccontextmanager

import httpx2
import openai
import pytest
import uvicorn
from llm_stack_server.app import create_app
from llm_stack_server.errors import StartupError
from llm_stack_server.mcp_tools.remote import allowed_servers
from llm_stack_server.settings import ServerSettings
from mcp.server.mcpserver import MCPServer
from mcp_types import ToolAnnotations
from server_replay_engine import ReplayEngine

CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 2, "b": 3}}\n</tool_call>'
TOOL = {"type": "mcp", "server_label": "sums", "require_approval": "never"}


class NoSignals:
    def __enter__(self): ...
    def __exit__(self, *_): ...


@asynccontextmanager
async def tool_server():
    """A server of the official library on a socket: its URL, and the calls that it got."""
    server, seen = MCPServer("sums"), []

    @server.tool(annotations=ToolAnnotations(read_only_hint=True))
    def add(a: int, b: int) -> str:
        """Add two numbers."""
        seen.append(("add", a, b))
        return f"the sum is {a + b}"

    @server.tool()
    def wipe() -> str:
        """Fail."""
        seen.append(("wipe",))
        raise ValueError("nothing to wipe")

    with socket.create_server(("127.0.0.1", 0)) as listener:
        config = uvicorn.Config(server.streamable_http_app(), lifespan="on", log_config=None)
        web = uvicorn.Server(config)
        web.capture_signals = NoSignals
        task = asyncio.ensure_future(web.serve(sockets=[listener]))
        while not web.started:
            await asyncio.sleep(0.01)
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}/mcp", seen
        finally:
            web.should_exit = web.force_exit = True
            await task


class Turns(ReplayEngine):
    """Says one script after the other, a generation each; the last one for good."""

    def __init__(self, *scripts):
        super().__init__()
        self.scripts = list(scripts)

    async def generate(self, *args, **kwargs):
        self.script = self.scripts.pop(0) if len(self.scripts) > 1 else self.scripts[0]
        async for delta in super().generate(*args, **kwargs):
            yield delta


@asynccontextmanager
async def served(*scripts):
    async with tool_server() as (url, seen):
        engine = Turns(*scripts)
        settings = ServerSettings(output_format="hermes", mcp_server=(f"sums={url}",))
        app = create_app(settings, engine)
        http = httpx2.AsyncClient(transport=httpx2.ASGITransport(app=app), base_url="http://test")
        sdk = openai.AsyncOpenAI(api_key="key", base_url="http://test/v1", http_client=http, max_retries=0)
        yield sdk.responses, engine, seen


async def streamed(responses, **body):
    return [event async for event in await responses.create(model="replay", stream=True, **body)]


async def test_the_model_calls_and_reads_the_result():
    async with served(CALL, "It is 5.") as (responses, engine, seen):
        response = await responses.create(model="replay", input="2 + 3?", tools=[TOOL])
        assert [item.type for item in response.output] == ["mcp_list_tools", "mcp_call", "message"]
        listed, call, _ = response.output
        assert [tool.name for tool in listed.tools] == ["add", "wipe"]
        assert (call.name, call.server_label, call.output, call.error) == (
            "add",
            "sums",
            "the sum is 5",
            None,
        )
        assert response.output_text == "It is 5."
        assert response.status == "completed"
        assert seen == [("add", 2, 3)]
        second = engine.tokenizer.decode(engine.seen[1][0], skip_special_tokens=False)
        assert "the sum is 5" in second
        # Usage is of both rounds.
        assert response.usage.input_tokens == sum(len(prompt) for prompt, _ in engine.seen)
        assert engine.num_open == 0


async def test_the_stream_tells_the_same():
    async with served(CALL, "It is 5.") as (responses, _, _):
        events = await streamed(responses, input="2 + 3?", tools=[TOOL])
        assert [event.sequence_number for event in events] == list(range(len(events)))
        kinds = [event.type.removeprefix("response.") for event in events]
        order = [
            "created", "in_progress",
            "output_item.added", "mcp_list_tools.in_progress", "mcp_list_tools.completed", "output_item.done",
            "output_item.added", "mcp_call.in_progress", "mcp_call_arguments.delta",
            "mcp_call_arguments.done", "mcp_call.completed", "output_item.done",
            "output_item.added", "content_part.added", "output_text.delta", "output_text.done",
            "content_part.done", "output_item.done",
            "completed",
        ]  # fmt: skip
        assert [kind for index, kind in enumerate(kinds) if index == 0 or kinds[index - 1] != kind] == order
        whole = events[-1].response
        assert whole.output_text == "It is 5."
        arguments = "".join(event.delta for event in events if event.type.endswith("arguments.delta"))
        assert whole.output[1].arguments == arguments
        done = [event.item for event in events if event.type == "response.output_item.done"]
        assert done == whole.output


async def test_a_tool_that_fails_is_told_to_the_model():
    script = '<tool_call>\n{"name": "wipe", "arguments": {}}\n</tool_call>'
    async with served(script, "It failed.") as (responses, engine, seen):
        response = await responses.create(model="replay", input="wipe", tools=[TOOL])
        call = response.output[1]
        assert call.output is None
        assert "wipe" in call.error
        assert response.output_text == "It failed."
        assert "Error" in engine.tokenizer.decode(engine.seen[1][0], skip_special_tokens=False)
        assert seen == [("wipe",)]


@pytest.mark.parametrize("approve", [True, False])
async def test_a_call_waits_for_approval(approve):
    async with served(CALL, "Done.") as (responses, engine, seen):
        tool = {**TOOL, "require_approval": "always"}
        first = await responses.create(model="replay", input="2 + 3?", tools=[tool])
        assert [item.type for item in first.output] == ["mcp_list_tools", "mcp_approval_request"]
        request = first.output[1]
        assert (request.name, request.server_label) == ("add", "sums")
        assert seen == []
        answer = {"type": "mcp_approval_response", "approval_request_id": request.id, "approve": approve}
        body = {"input": [answer], "tools": [tool], "previous_response_id": first.id}
        events = await streamed(responses, **body)
        second = events[-1].response
        assert second.output_text == "Done."
        prompt = engine.tokenizer.decode(engine.seen[1][0], skip_special_tokens=False)
        if approve:
            [call] = [item for item in second.output if item.type == "mcp_call"]
            assert (call.approval_request_id, call.output) == (request.id, "the sum is 5")
            assert seen == [("add", 2, 3)]
            assert "the sum is 5" in prompt
        else:
            assert seen == []
            assert "did not allow" in prompt
        # A third turn runs nothing again.
        third = await responses.create(
            model="replay", input="And?", tools=[tool], previous_response_id=second.id
        )
        assert third.output_text == "Done."
        assert len(seen) == int(approve)


async def test_rules_by_tool():
    async with served(CALL, "Done.") as (responses, _, seen):
        rules = {"never": {"read_only": True}}
        response = await responses.create(
            model="replay", input="x", tools=[{**TOOL, "require_approval": rules}]
        )
        assert [item.type for item in response.output][1] == "mcp_call"
        assert len(seen) == 1


async def test_allowed_tools_are_all_that_the_model_sees():
    async with served(CALL) as (responses, engine, seen):
        tool = {**TOOL, "allowed_tools": ["wipe"]}
        response = await responses.create(model="replay", input="x", tools=[tool])
        assert [one.name for one in response.output[0].tools] == ["wipe"]
        assert seen == []
        assert '"add"' not in engine.tokenizer.decode(engine.seen[0][0], skip_special_tokens=False)


@pytest.mark.parametrize("most", [1, 2])
async def test_calls_are_bounded(most):
    async with served(CALL) as (responses, engine, seen):
        response = await responses.create(model="replay", input="x", tools=[TOOL], max_tool_calls=most)
        assert len(seen) == most
        # The last round is offered no tools, so what looks like a call there is text.
        assert [item.type for item in response.output].count("mcp_call") == most
        assert "<tool_call>" in response.output_text
        assert len(engine.seen) == most + 1


async def test_a_call_of_the_clients_function_ends_the_response():
    own = {"type": "function", "name": "own", "parameters": {"type": "object"}, "strict": False}
    script = '<tool_call>\n{"name": "own", "arguments": {}}\n</tool_call>'
    async with served(f"{CALL}\n{script}") as (responses, engine, seen):
        response = await responses.create(model="replay", input="x", tools=[TOOL, own])
        assert [item.type for item in response.output] == ["mcp_list_tools", "mcp_call", "function_call"]
        assert len(engine.seen) == len(seen) == 1


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"server_label": "other"}, "tools[0].server_label"),
        ({"server_url": "http://169.254.169.254/latest"}, "tools[0].server_url"),
        ({"require_approval": "sometimes"}, "tools[0].require_approval"),
        ({"headers": {"x": "y"}}, "tools[0].headers"),
        ({"connector_id": "c"}, "tools[0].connector_id"),
    ],
)
async def test_only_what_the_operator_allows(change, field):
    async with served("no") as (responses, engine, seen):
        with pytest.raises(openai.BadRequestError) as caught:
            await responses.create(model="replay", input="x", tools=[{**TOOL, **change}])
        assert caught.value.param == field
        assert engine.seen == seen == []


async def test_a_server_that_is_down():
    settings = ServerSettings(output_format="hermes", mcp_server=("sums=http://127.0.0.1:9/mcp",))
    transport = httpx2.ASGITransport(app=create_app(settings, Turns("no")))
    async with httpx2.AsyncClient(transport=transport, base_url="http://test") as http:
        answer = await http.post("/v1/responses", json={"input": "x", "tools": [TOOL]})
    assert answer.status_code == 424
    assert "sums" in answer.json()["error"]["message"]


async def test_an_approval_of_nothing():
    async with served("no") as (responses, _, _):
        answer = {"type": "mcp_approval_response", "approval_request_id": "mcpr_x", "approve": True}
        turn = {"role": "user", "content": "x"}
        with pytest.raises(openai.BadRequestError) as caught:
            await responses.create(model="replay", input=[turn, answer], tools=[TOOL])
        assert "mcpr_x" in caught.value.message


async def test_a_secret_is_not_told_again():
    async with served("hi") as (responses, _, _):
        tool = {**TOOL, "authorization": "hush"}
        response = await responses.create(model="replay", input="x", tools=[tool])
        assert "hush" not in response.to_json()


@pytest.mark.parametrize("entry", ["sums", "=http://a", "a=ftp://b", "a=file:///etc"])
def test_wrong_entries(entry):
    with pytest.raises(StartupError, match="mcp_server"):
        allowed_servers([entry])


def test_a_label_twice():
    with pytest.raises(StartupError, match="twice"):
        allowed_servers(["a=http://b", "a=http://c"])
