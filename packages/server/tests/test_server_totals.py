"""Bounds on what all clients take together: connections, and the memory of bodies."""

from __future__ import annotations

import asyncio
import json
import resource

import httpx
import pytest
from llm_stack_server.connection_limit import connections_for
from llm_stack_server.http_server import HttpServer
from llm_stack_server.listening import listen

HEAD = b"GET /health/live HTTP/1.1\r\nhost: x\r\n\r\n"
COMPLETION = {"prompt": "hi", "max_tokens": 2}


@pytest.fixture
async def server(client):
    """A server of two connections; its port and the refusals that it counted."""
    listener = listen("127.0.0.1", 0)
    refused = []
    running = HttpServer(
        client.app, None, is_shared=False, max_connections=2, on_refusal=lambda: refused.append(1)
    )
    serving = asyncio.create_task(running.serve(sockets=[listener]))
    while not running.started:  # noqa: ASYNC110 -- uvicorn has no event for it
        await asyncio.sleep(0.01)
    yield listener.getsockname()[1], refused
    running.should_exit = running.force_exit = True
    await serving
    listener.close()


async def ask(reader, writer):
    writer.write(HEAD)
    return await asyncio.wait_for(reader.readline(), 10)


async def test_connections_are_bounded_and_told_so(server):
    port, refused = server
    held = [await asyncio.open_connection("127.0.0.1", port) for _ in range(2)]
    for reader, writer in held:
        assert b" 200 " in await ask(reader, writer)
    for sends in (b"", HEAD, b"x" * 100_000):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(sends)
        answer = await asyncio.wait_for(reader.read(), 10)
        assert answer.startswith(b"HTTP/1.1 503 ")
        assert b"\r\nretry-after: 1\r\n" in answer
        assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["code"] == "too_many_connections"
        writer.close()
    assert len(refused) == 3
    # Those that are in stay in, and a place that comes free is given away.
    await held[0][0].readuntil(b"}")
    assert b" 200 " in await ask(*held[0])
    held[1][1].close()
    await asyncio.sleep(0.1)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    assert b" 200 " in await ask(reader, writer)
    for one in (held[0][1], writer):
        one.close()
    assert len(refused) == 3


def test_without_a_number_the_limit_of_open_files_counts():
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert connections_for(7) == 7
    assert 0 < connections_for(0) < files or files == resource.RLIM_INFINITY


@pytest.mark.parametrize("chunked", [False, True])
async def test_the_memory_of_all_bodies_is_bounded(make_client, engine, chunked):
    client = make_client(max_total_body_bytes=5000)
    engine.gate = asyncio.Event()

    def post(size):
        raw = json.dumps(COMPLETION | {"user": "u" * size}).encode()

        async def pieces():
            for at in range(0, len(raw), 1000):
                yield raw[at : at + 1000]

        return client.post(
            "/v1/completions",
            content=pieces() if chunked else raw,
            headers={"content-type": "application/json"},
        )

    waiting = [asyncio.ensure_future(post(2000)) for _ in range(2)]
    while engine.live < 2:  # noqa: ASYNC110 -- the double has no event for it
        await asyncio.sleep(0.01)
    refused = await post(2000)
    assert refused.status_code == 503
    assert refused.headers["retry-after"] == "1"
    assert refused.headers["connection"] == "close"
    assert refused.json()["error"]["code"] == "too_many_body_bytes"
    engine.gate.set()
    assert [answer.status_code for answer in await asyncio.gather(*waiting)] == [200, 200]
    # All is given back: by those that ended, and by the one that was refused.
    for _ in range(3):
        assert (await post(4000)).status_code == 200
    metrics = (await client.get("/metrics")).text
    assert 'llm_stack_requests_refused_total{reason="too_many_body_bytes"} 1.0' in metrics


async def test_a_client_that_leaves_gives_its_memory_back(make_client, engine):
    client = make_client(max_total_body_bytes=5000)
    engine.gate = asyncio.Event()
    body = COMPLETION | {"user": "u" * 4000}
    left = asyncio.ensure_future(client.post("/v1/completions", json=body))
    while not engine.live:  # noqa: ASYNC110 -- the double has no event for it
        await asyncio.sleep(0.01)
    left.cancel()
    with pytest.raises((asyncio.CancelledError, httpx.HTTPError)):
        await left
    engine.gate.set()
    assert (await client.post("/v1/completions", json=body)).status_code == 200
