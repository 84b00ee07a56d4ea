"""The bound on request heads, whichever way the bytes arrive."""

from __future__ import annotations

import asyncio

import pytest
import uvicorn
from llm_stack_server.http_protocol import MAX_HEAD_BYTES, BoundedHeadProtocol


@pytest.fixture
async def port(client):
    config = uvicorn.Config(
        client.app, http=BoundedHeadProtocol, ws="none", lifespan="off", log_config=None, port=0
    )
    server = uvicorn.Server(config)
    serving = asyncio.create_task(server._serve())
    while not server.started:  # noqa: ASYNC110 -- uvicorn has no event for it
        await asyncio.sleep(0.01)
    yield server.servers[0].sockets[0].getsockname()[1]
    server.should_exit = True
    await serving


async def exchange(port: int, pieces: list[bytes]) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(0.01)
        return await asyncio.wait_for(reader.readline(), 5)
    finally:
        writer.close()


@pytest.mark.parametrize("size", [100, MAX_HEAD_BYTES - 1000, MAX_HEAD_BYTES + 1000, 5 * MAX_HEAD_BYTES])
@pytest.mark.parametrize("pieces", [1, 8])
async def test_head_is_bounded(port, size, pieces):
    head = b"GET /health/live HTTP/1.1\r\nhost: x\r\nbig: " + b"a" * size + b"\r\n\r\n"
    step = -(-len(head) // pieces)
    try:
        line = await exchange(port, [head[at : at + step] for at in range(0, len(head), step)])
    except ConnectionError:  # closed while we were still sending
        assert size > MAX_HEAD_BYTES
        return
    if size > MAX_HEAD_BYTES:
        assert line == b"" or b" 431 " in line
    else:
        assert b" 200 " in line


async def test_a_second_request_has_a_budget_of_its_own(port):
    head = b"GET /health/live HTTP/1.1\r\nhost: x\r\nbig: " + b"a" * 40_000 + b"\r\n\r\n"
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for _ in range(3):
        writer.write(head)
        assert b" 200 " in await asyncio.wait_for(reader.readline(), 5)
        while (line := await asyncio.wait_for(reader.readline(), 5)) != b"\r\n":
            assert line
        await reader.readexactly(len(b'{"status":"live"}'))
    writer.close()
