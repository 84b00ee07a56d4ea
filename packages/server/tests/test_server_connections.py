"""Clients that read or write slowly, over real sockets: what is kept for them is bounded (C140)."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from functools import partial

import pytest
import uvicorn
from llm_engine.outputs import RequestDelta
from llm_stack_server.errors import SlowReader, StartupError
from llm_stack_server.http_protocol import BoundedHeadProtocol
from llm_stack_server.settings import ServerSettings
from llm_stack_server.stream_sender import StreamBounds, StreamSender
from uvicorn.server import ServerState

PIECE = "x" * 5000


class Pouring:
    """An engine's `generate` that yields text for as long as it is asked to."""

    def __init__(self, engine) -> None:
        self.live = 0
        self.pieces = 0
        engine.generate = self.generate

    async def generate(self, prompt, params, *, request_id=None, priority=0, **cache):
        self.live += 1
        try:
            while True:
                self.pieces += 1
                yield RequestDelta(
                    request_id=request_id,
                    index=0,
                    text=PIECE,
                    token_ids=(120,),
                    num_prompt_tokens=len(prompt),
                    num_cached_tokens=0,
                    num_output_tokens=self.pieces,
                )
                await asyncio.sleep(0)
        finally:
            self.live -= 1


class FastHead(BoundedHeadProtocol):
    head_timeout_s = 0.2
    linger_s = 0.3


@pytest.fixture
async def serve(make_client):
    servers = []

    async def start(**settings) -> tuple[int, object]:
        client = make_client(**settings)
        config = uvicorn.Config(
            client.app,
            http=FastHead,
            ws="none",
            lifespan="off",
            log_config=None,
            port=0,
            timeout_keep_alive=1,
        )
        server = uvicorn.Server(config)
        serving = asyncio.create_task(server._serve())
        servers.append((server, serving))
        while not server.started:  # noqa: ASYNC110 -- uvicorn has no event for it
            await asyncio.sleep(0.01)
        return server.servers[0].sockets[0].getsockname()[1], client

    yield start
    for server, serving in servers:
        server.should_exit = True
        server.force_exit = True
        await serving


async def until(condition, timeout_s: float = 10) -> None:
    async with asyncio.timeout(timeout_s):
        while not condition():  # noqa: ASYNC110 -- what is waited for has no event
            await asyncio.sleep(0.005)


def request(body: dict) -> bytes:
    raw = json.dumps(body).encode()
    head = "POST /v1/completions HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
    return f"{head}content-length: {len(raw)}\r\n\r\n".encode() + raw


def small_socket(port: int) -> socket.socket:
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.connect(("127.0.0.1", port))
    return connection


def read_to_the_end(connection: socket.socket) -> int:
    """Bytes until the server's end or reset of the connection."""
    received = 0
    try:
        while data := connection.recv(1 << 16):
            received += len(data)
    except ConnectionResetError:
        pass
    return received


async def cut_off(client) -> float:
    text = (await client.get("/metrics")).text
    lines = [
        line for line in text.splitlines() if "requests_cut_off_total{" in line and "slow_reader" in line
    ]
    return float(lines[0].split()[-1]) if lines else 0.0


async def test_a_client_that_stops_reading_is_cut_off(serve, engine):
    pouring = Pouring(engine)
    port, client = await serve(max_stream_buffer_bytes=200_000)
    with small_socket(port) as connection:
        connection.sendall(request({"prompt": "x", "stream": True}))
        await until(lambda: pouring.live == 1)
        await until(lambda: pouring.live == 0)
        assert await cut_off(client) == 1
        sent = pouring.pieces * len(PIECE)
        assert sent < 12_000_000, "the sockets' own buffers and ours, no more"
        assert client.app.state.context.usage.ledger.num_running == 0
        connection.settimeout(5)
        assert await asyncio.to_thread(read_to_the_end, connection) < sent


async def test_a_client_that_is_slow_gets_all_of_it(serve, engine):
    """Frames that pile up are joined, none is lost or doubled, and the order stays."""
    engine.max_model_len = 3000
    engine.script = "".join(chr(97 + index % 26) for index in range(2500))
    port, client = await serve(max_stream_buffer_bytes=10_000_000)
    reader, writer = await asyncio.open_connection(sock=small_socket(port), limit=2048)
    writer.write(request({"prompt": "x", "stream": True, "max_tokens": 2600, "logprobs": 20}))
    await until(lambda: engine.live == 1)
    await until(lambda: engine.live == 0)  # the engine never waits for the client
    raw = b""
    while not raw.endswith(b"0\r\n\r\n"):
        raw += await asyncio.wait_for(reader.read(65536), 5)
    writer.close()
    events = [part.split(b"\n\n")[0] for part in raw.split(b"data: ")[1:]]
    assert events[-1] == b"[DONE]"
    text = raw.replace(b"\r\n", b"").decode()
    letters = [piece.split('"')[0] for piece in text.split('"text":"')[1:]]
    assert "".join(letters) == engine.script
    assert await cut_off(client) == 0


async def test_a_stalled_stream_ends_in_time(serve, engine):
    pouring = Pouring(engine)
    port, client = await serve(stream_stall_s=0.3, max_stream_buffer_bytes=2**40)
    with small_socket(port) as connection:
        connection.sendall(request({"prompt": "x", "stream": True}))
        await until(lambda: pouring.live == 1)
        await until(lambda: pouring.live == 0)
        assert await cut_off(client) == 1


class Paused:
    """A connection whose client takes nothing until told."""

    def __init__(self) -> None:
        self.taken: list[bytes] = []
        self.go = asyncio.Event()

    def is_write_paused(self) -> bool:
        return not self.go.is_set()

    def write_chunk(self, data: bytes) -> None:
        assert self.go.is_set()
        self.taken.append(data)

    def abort(self) -> None:
        raise AssertionError

    async def send(self, message) -> None:
        await self.go.wait()
        self.taken.append(message.get("body", b""))


async def frames(count: int):
    for index in range(count):
        yield f"{index},".encode()
        await asyncio.sleep(0)


@pytest.mark.parametrize("go_at", [0, 1, 7, 50])
async def test_sender_keeps_the_order(go_at):
    client = Paused()
    sender = StreamSender(client.send, client, StreamBounds(1000, 5))

    async def release() -> None:
        for _ in range(go_at):
            await asyncio.sleep(0)
        client.go.set()

    await asyncio.gather(sender.run(frames(30)), release())
    assert b"".join(client.taken) == b"".join(f"{index},".encode() for index in range(30))


async def test_sender_bounds():
    client = Paused()
    with pytest.raises(SlowReader, match="bytes wait"):
        await StreamSender(client.send, client, StreamBounds(50, 5)).run(frames(1000))
    with pytest.raises(SlowReader, match="has not read the rest"):
        await StreamSender(client.send, client, StreamBounds(5000, 0.05)).run(frames(10))
    assert client.taken == []


# Slow writers


async def hello(scope, receive, send) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"hello"})


class LateLoop(FastHead):
    """Looks at its connection only when a head's time is over, as a busy loop does."""

    def connection_made(self, transport) -> None:
        super().connection_made(transport)
        transport.pause_reading()
        self.loop.call_later(0.5, transport.resume_reading)


async def test_a_head_that_our_own_loop_has_not_read_is_not_late():
    config = uvicorn.Config(hello, http=LateLoop, lifespan="off", log_config=None)
    config.load()
    made = partial(LateLoop, config=config, server_state=ServerState(), app_state={})
    server = await asyncio.get_running_loop().create_server(made, "127.0.0.1", 0)
    reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
    writer.write(b"GET / HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
    assert (await reader.read(1000)).startswith(b"HTTP/1.1 200")
    writer.close()
    server.close()


async def exchange(port: int, first: bytes, more: bytes = b"") -> bytes:
    """Send ``first``, then ``more`` again and again, until the server closes.

    What is sent after that makes TCP reset the connection, which may overtake the answer: then once more.
    """
    for _ in range(4):
        with contextlib.suppress(ConnectionResetError):
            return await exchange_once(port, first, more)
    return await exchange_once(port, first, more)


async def exchange_once(port: int, first: bytes, more: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(first)
        answer = asyncio.ensure_future(reader.read())
        async with asyncio.timeout(8):
            while not answer.done():
                await asyncio.sleep(0.02)
                if more and not answer.done():
                    writer.write(more)
            return await answer
    finally:
        writer.close()


async def test_a_head_that_trickles_in_gets_408(serve):
    port, _ = await serve()
    assert b" 408 " in await exchange(port, b"GET /version HTTP/1.1\r\nx: ", b"a")


async def test_a_connection_that_says_nothing_is_closed(serve):
    port, _ = await serve()
    assert await exchange(port, b"") == b""


async def test_a_second_head_has_its_own_time(serve):
    port, _ = await serve()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for _ in range(3):
        writer.write(b"GET /health/live HTTP/1.1\r\nhost: localhost\r\n\r\n")
        assert b" 200 " in await asyncio.wait_for(reader.readuntil(b'live"}'), 5)
        await asyncio.sleep(0.25)  # longer than a head may take: between requests only keep-alive counts
    writer.write(b"GET /health/live HT")
    assert b" 408 " in await asyncio.wait_for(reader.readline(), 5)
    writer.close()


@pytest.mark.parametrize("chunked", [False, True])
async def test_a_body_that_trickles_in_gets_408(serve, engine, chunked):
    port, client = await serve(body_timeout_s=0.3)
    kind = b"transfer-encoding: chunked" if chunked else b"content-length: 5000"
    head = (
        b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
        + kind
        + b"\r\n\r\n"
    )
    answer = await exchange(port, head, b"1\r\na\r\n" if chunked else b"a")
    assert b" 408 " in answer
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["code"] == "request_timeout"
    assert engine.seen == []
    assert (await client.post("/v1/completions", json={"prompt": "x"})).status_code == 200


async def test_who_is_refused_cannot_hold_the_connection(serve):
    port, _ = await serve(api_key=("k",))
    head = b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: 5000\r\n\r\n"
    assert b" 401 " in await exchange(port, head, b"a")  # it sends on and on, and is closed none the less
    # One that sends the rest at once may go on with the connection.
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for _ in range(2):
        writer.write(head)
        assert b" 401 " in await asyncio.wait_for(reader.readuntil(b"}}"), 5)
        writer.write(b"a" * 5000)
        await asyncio.sleep(0.4)
    writer.close()


async def test_a_long_answer_outlives_the_body_timeout(serve, engine):
    engine.gate = asyncio.Event()
    port, _ = await serve(body_timeout_s=0.05)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request({"prompt": "x"}))
    await until(lambda: engine.live == 1)
    await asyncio.sleep(0.2)
    engine.gate.set()
    assert b" 200 " in await asyncio.wait_for(reader.readline(), 5)
    writer.close()


async def test_bad_http_gets_json(serve):
    port, _ = await serve()
    answer = await exchange(port, b"\x16\x03\x01 not http\r\n\r\n")
    assert b" 400 " in answer
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["code"] == "invalid_http"


async def test_many_headers_and_a_lying_length(serve):
    port, client = await serve()
    many = b"".join(b"h%d: v\r\n" % index for index in range(10_000))
    assert b" 431 " in await exchange(port, b"GET /version HTTP/1.1\r\n" + many + b"\r\n")
    huge = b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: %d\r\n\r\n" % 2**31
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(huge + b"a" * 1000)
    assert b" 413 " in await asyncio.wait_for(reader.readline(), 8)
    writer.close()
    assert (await client.get("/health/live")).status_code == 200


@pytest.mark.parametrize("option", ["stream_stall_s", "body_timeout_s"])
@pytest.mark.parametrize("value", [0, -1, float("nan"), float("inf")])
def test_times_are_above_zero(option, value):
    with pytest.raises(StartupError, match=option):
        ServerSettings(**{option: value})
