"""The tools at /mcp, asked by the official client over HTTP."""
# ruff: noqa: ASYNC110 -- what is waited for is on the other side of a socket

from __future__ import annotations

import asyncio
import socket
from contextlib import asynccontextmanager

import httpx2
import pytest
import uvicorn
from llm_stack_server.app import create_app
from llm_stack_server.settings import ServerSettings
from mcp.client.client import Client
from mcp.client.streamable_http import streamable_http_client
from mcp_types import CallToolResult


@asynccontextmanager
async def serving(engine, **settings):
    """The application on a socket; its URL and itself."""
    app = create_app(ServerSettings(mcp=True, **settings), engine)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = uvicorn.Server(uvicorn.Config(app, lifespan="off", log_config=None))
        server.capture_signals = _leave_signals_alone
        task = asyncio.ensure_future(server.serve(sockets=[listener]))
        while not server.started:
            await asyncio.sleep(0.01)
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}/mcp", app
        finally:
            server.should_exit = server.force_exit = True
            await task


class _leave_signals_alone:  # noqa: N801 -- a context manager in place of a method
    def __enter__(self): ...
    def __exit__(self, *_): ...


@asynccontextmanager
async def host(url, key=None, mode="auto"):
    headers = {} if key is None else {"authorization": f"Bearer {key}"}
    async with (
        httpx2.AsyncClient(headers=headers, timeout=20) as http,
        Client(streamable_http_client(url, http_client=http), mode=mode) as client,
    ):
        yield client


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_tools_are_listed_and_called(engine, mode):
    async with serving(engine) as (url, _), host(url, mode=mode) as client:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        assert set(tools) == {"chat", "complete", "count_tokens"}
        assert all(tool.annotations.read_only_hint for tool in tools.values())
        assert tools["complete"].input_schema["required"] == ["prompt"]
        answer = await client.call_tool(
            "chat", {"prompt": "hi", "system": "Be brief.", "max_tokens": 60, "temperature": 0}
        )
        assert not answer.is_error
        assert answer.content[0].text == engine.script
        assert answer.structured_content["text"] == engine.script
        assert answer.structured_content["finish_reason"] == "stop"
        prompt, params, _ = engine.seen[0]
        assert bytes(prompt) == b"[system]Be brief.\n[user]hi\n[assistant]"
        assert (params.max_tokens, params.temperature) == (60, 0)
        answer = await client.call_tool("complete", {"prompt": "Once", "max_tokens": 4})
        assert answer.structured_content["finish_reason"] == "length"
        assert bytes(engine.seen[1][0]) == b"Once"
        answer = await client.call_tool("count_tokens", {"text": "Grüße"})
        assert answer.structured_content == {"count": 7, "max_model_len": 200}


async def test_a_conversation_and_a_schema(engine):
    async with serving(engine) as (url, _), host(url) as client:
        messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
        more = {"json_schema": {"type": "object"}, "seed": 3, "stop": ["zz"]}
        answer = await client.call_tool("chat", {"messages": messages, **more})
        assert not answer.is_error
        assert engine.seen[0][1].grammar.kind == "json_schema"
        assert engine.seen[0][1].seed == 3


@pytest.mark.parametrize(
    ("name", "arguments", "told"),
    [
        ("chat", {}, "prompt"),
        ("chat", {"prompt": "a", "messages": []}, "prompt"),
        ("chat", {"prompt": "a", "top_k": 5}, "top_k"),
        ("chat", {"prompt": "a", "temperature": "hot"}, "temperature"),
        ("chat", {"messages": "a"}, "messages"),
        ("complete", {}, "prompt"),
        ("complete", {"prompt": "x" * 500}, "prompt"),
        ("count_tokens", {"text": 5}, "prompt"),
        ("other", {}, "other"),
    ],
)
async def test_what_is_wrong_is_told_to_the_hosts_model(engine, name, arguments, told):
    async with serving(engine) as (url, _), host(url) as client:
        answer: CallToolResult = await client.call_tool(name, arguments)
        assert answer.is_error
        assert told in answer.content[0].text
        assert engine.seen == []


async def test_keys_guard_the_endpoint_and_reach_the_route(engine):
    async with serving(engine, api_key=("team secret",), requests_per_minute=2) as (url, _):
        async with httpx2.AsyncClient() as http:
            assert (await http.post(url, json={})).status_code == 401
        async with host(url, "secret") as client:
            for _ in range(2):
                assert not (await client.call_tool("count_tokens", {"text": "a"})).is_error
            answer = await client.call_tool("count_tokens", {"text": "a"})
            assert answer.is_error
            assert "2 requests a minute" in answer.content[0].text


async def test_leaving_frees_the_work(engine):
    engine.gate = asyncio.Event()
    async with serving(engine) as (url, app):
        call = {"name": "chat", "arguments": {"prompt": "hi"}}
        body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": call}
        accept = {"accept": "application/json, text/event-stream"}
        async with httpx2.AsyncClient() as http:
            asking = asyncio.ensure_future(http.post(url, json=body, headers=accept, timeout=20))
            while not engine.live:
                await asyncio.sleep(0.01)
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)
        async with asyncio.timeout(5):
            while engine.live:
                await asyncio.sleep(0.01)
        assert engine.aborted == 1
        assert await app.state.context.lifecycle.wait_idle(5)


async def test_a_limit_of_time_holds(engine):
    engine.gate = asyncio.Event()
    async with serving(engine, max_request_s=0.2) as (url, _), httpx2.AsyncClient() as http:
        call = {"name": "chat", "arguments": {"prompt": "hi"}}
        body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": call}
        accept = {"accept": "application/json, text/event-stream"}
        answer = await http.post(url, json=body, headers=accept, timeout=20)
        assert answer.status_code in (200, 504)
        assert "0.2 s" in answer.text
        assert engine.live == 0


@pytest.mark.parametrize("media_type", [None, "", "text/plain", "multipart/form-data; boundary=x"])
async def test_a_wrong_content_type_is_refused_in_json(make_client, media_type):
    headers = {"accept": "application/json, text/event-stream"}
    headers |= {} if media_type is None else {"content-type": media_type}
    answer = await make_client(mcp=True).post("/mcp", content=b"{}", headers=headers)
    assert answer.status_code == 415
    assert answer.json()["error"]["code"] == "unsupported_media_type"


async def test_only_posts_and_only_where_it_was_asked_for(engine, client):
    assert (await client.post("/mcp", json={})).status_code == 404
    async with serving(engine) as (url, _), httpx2.AsyncClient() as http:
        assert (await http.get(url)).status_code == 405
        json_type = {"content-type": "application/json"}
        assert (await http.post(url, content=b"{", headers=json_type)).status_code == 400


async def test_before_the_model_is_there():
    async with serving(None) as (url, _), httpx2.AsyncClient() as http:
        answer = await http.post(url, json={})
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "starting")
