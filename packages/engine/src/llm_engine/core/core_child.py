"""Owns one core process of a host: its start, its messages to the host, its end; decides nothing."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import msgspec
import zmq
import zmq.asyncio

from llm_engine.core.core_state import CoreOrders
from llm_engine.core.messages import HOST, Codec, FromCore, ToCore, from_core_socket, to_core_socket
from llm_engine.core.step_journal import JournalEntry, journal_path, read_journal
from llm_engine.errors import EngineDead
from llm_engine.options import EngineOptions

_LAST_WORDS_S = 0.3


class CoreChild:
    """A core process. All methods belong to the event loop that made it.

    Args:
        folder: The host's.
        generation: The core's number.
        options: What to run.
        orders: What it is told of requests of earlier cores.
    """

    def __init__(self, folder: Path, generation: int, options: EngineOptions, orders: CoreOrders) -> None:
        self._folder = folder
        self._generation = generation
        self._codec = Codec()
        self._context = zmq.Context(io_threads=1)
        # Sending to a pipe without a limit never blocks, so only the receiving end is asynchronous.
        self._from_core = zmq.asyncio.Context.shadow(self._context).socket(zmq.PULL)
        self._from_core.set_hwm(0)
        self._from_core.bind(f"ipc://{folder / from_core_socket(HOST, generation)}")
        self._to_core = self._context.socket(zmq.PUSH)
        self._to_core.set_hwm(0)
        self._to_core.connect(f"ipc://{folder / to_core_socket(generation)}")
        loop = asyncio.get_running_loop()
        self.exited: asyncio.Future[int] = loop.create_future()
        command = [sys.executable, "-m", "llm_engine.core.core_process", str(folder), str(generation)]
        # A process group of its own, so that nothing of it is left when it is ended by force.
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, process_group=0)  # noqa: S603
        watch = threading.Thread(target=self._watch, args=(loop,), daemon=True, name="core-watch")
        watch.start()
        with contextlib.suppress(BrokenPipeError):  # it died at once: `receive` tells why
            self._stdin.write(msgspec.json.encode(options) + b"\n" + msgspec.json.encode(orders) + b"\n")
            self._stdin.flush()

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        """Whether the process runs."""
        return not self.exited.done()

    def send(self, message: ToCore) -> None:
        """Queue a message; never blocks, and goes nowhere when the process has ended."""
        self._to_core.send(self._codec.encode(message), zmq.NOBLOCK)

    async def receive(self) -> FromCore:
        """The next message to the host.

        Raises:
            EngineDead: The process has ended and nothing is left to read.
        """
        received = asyncio.ensure_future(self._from_core.recv())
        try:
            waiters: list[asyncio.Future[Any]] = [received, self.exited]
            await asyncio.wait(waiters, return_when=asyncio.FIRST_COMPLETED)
            if not received.done():  # its last words may still be on their way
                await asyncio.wait({received}, timeout=_LAST_WORDS_S)
            if not received.done():
                raise EngineDead(self.death())
        finally:
            if not received.done():
                received.cancel()
        return self._codec.decode_from_core(received.result())

    async def wait_exit(self, timeout_s: float) -> bool:
        """Wait for the end of the process; False where it still runs then."""
        await asyncio.wait({self.exited}, timeout=timeout_s)
        return self.exited.done()

    def kill(self) -> None:
        """End the process and all it has started, at once."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        if not self.exited.done():
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._process.pid, signal.SIGKILL)

    def close(self) -> JournalEntry:
        """End the process, close the sockets, remove the files; returns what the core was at."""
        self.kill()
        with contextlib.suppress(BrokenPipeError):
            self._stdin.close()
        self._from_core.close(linger=0)
        self._to_core.close(linger=0)
        self._context.term()
        journal = journal_path(self._folder, self._generation)
        entry = read_journal(journal)
        journal.unlink(missing_ok=True)
        for name in (to_core_socket(self._generation), from_core_socket(HOST, self._generation)):
            (self._folder / name).unlink(missing_ok=True)
        return entry

    def death(self) -> str:
        """One line on how the process ended."""
        code = self.exited.result() if self.exited.done() else None
        if code is None:
            return "the engine core is not running"
        if code < 0:
            return f"the engine core (pid {self.pid}) was ended by {signal.Signals(-code).name}"
        return f"the engine core (pid {self.pid}) ended with exit code {code}"

    @property
    def _stdin(self) -> Any:  # noqa: ANN401 - a binary file
        return self._process.stdin

    def _watch(self, loop: asyncio.AbstractEventLoop) -> None:
        code = self._process.wait()
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(self._note_exit, code)

    def _note_exit(self, code: int) -> None:
        if not self.exited.done():
            self.exited.set_result(code)
