"""Sends a case over a socket and reads the answer. Knows HTTP/1.1, and nothing of what is right."""

from __future__ import annotations

import asyncio
import contextlib
import time
from dataclasses import dataclass, field

import h11

from scripts.server_fuzz.cases import Case
from scripts.server_fuzz.seeds import STORED

_PIECE_PAUSE_S = 0.005
_READ_BYTES = 64 * 1024


@dataclass(slots=True, kw_only=True)
class Answer:
    """What came back.

    Attributes:
        status: Of HTTP; 0 where nothing that is HTTP came.
        headers: By lower-case name.
        body: Without its framing.
        fault: Why there is no whole answer; "" where there is one.
        wall_s: From connecting to the end.
    """

    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    fault: str = ""
    wall_s: float = 0.0


async def send(case: Case, host: str, port: int, stored: str, timeout_s: float) -> Answer:
    """Send ``case`` on a connection of its own.

    Args:
        case: What is sent.
        host: The server's address.
        port: The server's port.
        stored: The id of a response that is kept there.
        timeout_s: For all of it.
    """
    began_s = time.monotonic()
    answer = Answer()
    try:
        async with asyncio.timeout(timeout_s):
            await _exchange(case, host, port, stored, answer)
    except TimeoutError:
        answer.fault = f"no whole answer in {timeout_s:g} s"
    except OSError as error:
        answer.fault = f"{type(error).__name__}: {error}"
    answer.wall_s = time.monotonic() - began_s
    return answer


async def _exchange(case: Case, host: str, port: int, stored: str, answer: Answer) -> None:
    reader, writer = await asyncio.open_connection(host, port, limit=_READ_BYTES)
    try:
        sending = asyncio.ensure_future(_send(case, writer, _wire(case, f"{host}:{port}", stored)))
        try:
            await _read(case, reader, answer)
        finally:
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


async def _send(case: Case, writer: asyncio.StreamWriter, wire: bytes) -> None:
    size = -(-len(wire) // case.pieces)
    for begin in range(0, len(wire), size):
        writer.write(wire[begin : begin + size])
        await writer.drain()
        if case.pieces > 1:
            await asyncio.sleep(_PIECE_PAUSE_S)
    if case.framing == "length too large":
        writer.write_eof()  # the rest never comes


def _wire(case: Case, host: str, stored: str) -> bytes:
    body = case.body.replace(STORED.encode(), stored.encode())
    headers = list(case.headers)
    if not any(name.lower() == "host" for name, _ in headers):
        headers.insert(0, ("host", host))
    headers.append(("connection", "close"))
    match case.framing:
        case "chunked" | "broken chunks":
            headers.append(("transfer-encoding", "chunked"))
            step = max(1, len(body) // 3)
            chunks = [body[begin : begin + step] for begin in range(0, len(body), step)]
            body = b"".join(b"%x\r\n%s\r\n" % (len(chunk), chunk) for chunk in chunks) + b"0\r\n\r\n"
            if case.framing == "broken chunks":
                body = b"zz\r\n" + body
        case "length too large":
            headers.append(("content-length", str(len(body) + 100)))
        case "length too small":
            headers.append(("content-length", str(len(body) // 2)))
        case _:
            if body or case.method == "POST":
                headers.append(("content-length", str(len(body))))
    path = case.path.replace(STORED, stored)
    lines = [f"{case.method} {path} HTTP/{case.version}", *(f"{name}: {value}" for name, value in headers)]
    return "\r\n".join(lines).encode("utf-8") + b"\r\n\r\n" + body


async def _read(case: Case, reader: asyncio.StreamReader, answer: Answer) -> None:
    parser = h11.Connection(h11.CLIENT, max_incomplete_event_size=2**20)
    method = case.method if case.method in ("HEAD", "CONNECT") else "GET"
    parser.send(h11.Request(method=method, target="/", headers=[("host", "x")]))
    parser.send(h11.EndOfMessage())
    body, read_bytes = [], 0
    try:
        while True:
            event = parser.next_event()
            if event is h11.NEED_DATA:
                data = b"" if case.reads == 0 else await reader.read(_READ_BYTES)
                read_bytes += len(data)
                if case.reads is not None and read_bytes >= case.reads:
                    answer.fault = "dropped by the client"
                    return
                parser.receive_data(data)
            elif isinstance(event, h11.Response):
                answer.status = event.status_code
                answer.headers = {name.decode(): value.decode("latin-1") for name, value in event.headers}
            elif isinstance(event, h11.Data):
                body.append(bytes(event.data))
            elif isinstance(event, h11.EndOfMessage):
                answer.body = b"".join(body)
                return
            elif isinstance(event, h11.ConnectionClosed):
                answer.fault = "closed without an answer"
                return
    except h11.RemoteProtocolError as error:
        answer.fault = f"not HTTP: {error}"
        answer.body = b"".join(body)
