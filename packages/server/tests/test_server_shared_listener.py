"""Accepting at a socket at which others accept too."""

from __future__ import annotations

import asyncio
import errno
import socket

import pytest
from llm_stack_server import shared_listener
from llm_stack_server.shared_listener import SharedListener


class Front:
    """Stands for one process: greets whoever connects with its name."""

    def __init__(self, listener: socket.socket, name: bytes) -> None:
        self.num_connections = 0
        self._name = name
        self.accepting = SharedListener(listener, self._protocol, None)

    def _protocol(self) -> asyncio.Protocol:
        front = self

        class Greeting(asyncio.Protocol):
            def connection_made(self, transport: asyncio.BaseTransport) -> None:
                front.num_connections += 1
                assert isinstance(transport, asyncio.Transport)
                transport.write(front._name)
                transport.close()

        return Greeting()


@pytest.fixture
def listener():
    with socket.create_server(("127.0.0.1", 0), backlog=64) as server:
        server.setblocking(False)
        yield server


async def greeting(listener: socket.socket) -> bytes:
    reader, writer = await asyncio.open_connection(*listener.getsockname())
    said = await reader.read()
    writer.close()
    return said


async def test_all_who_wait_are_accepted_by_some(listener):
    fronts = [Front(listener, b"a"), Front(listener.dup(), b"b")]
    for front in fronts:
        front.accepting.open()
    said = await asyncio.gather(*(greeting(listener) for _ in range(40)))
    for front in fronts:
        front.accepting.close()
    assert set(said) <= {b"a", b"b"}
    assert sum(front.num_connections for front in fronts) == 40


async def test_what_waits_when_one_closes_is_left_to_the_other(listener):
    first, second = Front(listener, b"a"), Front(listener.dup(), b"b")
    first.accepting.open()
    assert await greeting(listener) == b"a"
    first.accepting.close()
    waiting = asyncio.ensure_future(greeting(listener))
    await asyncio.sleep(0.05)
    assert not waiting.done()
    second.accepting.open()
    assert await asyncio.wait_for(waiting, 5) == b"b"
    second.accepting.close()


class Full:
    """A socket whose process has no descriptor left for a while."""

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
        self.num_refusals = 0

    def fileno(self) -> int:
        return self._listener.fileno()

    def accept(self) -> tuple[socket.socket, object]:
        if self.num_refusals < 2:
            self.num_refusals += 1
            raise OSError(errno.EMFILE, "Too many open files")
        return self._listener.accept()


async def test_without_descriptors_it_waits_and_goes_on(listener, monkeypatch):
    monkeypatch.setattr(shared_listener, "_PAUSE_S", 0.05)
    full = Full(listener)
    front = Front(full, b"a")  # type: ignore[arg-type]  # as much of a socket as is used
    front.accepting.open()
    assert await asyncio.wait_for(greeting(listener), 5) == b"a"
    assert full.num_refusals == 2  # one a pause, not one a turn of the loop
    front.accepting.close()


async def test_closing_during_the_pause_ends_it(listener, monkeypatch):
    monkeypatch.setattr(shared_listener, "_PAUSE_S", 0.05)
    full = Full(listener)
    front = Front(full, b"a")  # type: ignore[arg-type]
    front.accepting.open()
    waiting = asyncio.ensure_future(greeting(listener))
    while not full.num_refusals:  # noqa: ASYNC110 -- it has no event
        await asyncio.sleep(0)
    front.accepting.close()
    await asyncio.sleep(0.2)
    assert full.num_refusals == 1
    assert front.num_connections == 0
    waiting.cancel()
