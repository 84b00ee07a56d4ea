"""Owns the front end's hold on a core process: start, messages, death; knows nothing of their meaning."""

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

import msgspec
import zmq
import zmq.asyncio

from llm_engine.core.messages import (
    FROM_CORE_SOCKET,
    TO_CORE_SOCKET,
    Codec,
    CoreFailed,
    FromCore,
    Shutdown,
    ToCore,
)
from llm_engine.errors import EngineDead, StartupError
from llm_engine.options import EngineOptions

_LAST_WORDS_S = 0.3


class ProcessClient:
    """A core in a process of its own. All methods belong to the event loop that started it."""

    def __init__(self) -> None:
        self._codec = Codec()
        self._context = zmq.Context(io_threads=1)
        self._async_context = zmq.asyncio.Context.shadow(self._context)
        # Sockets in a folder that only this user may enter (mkdtemp makes it 0700).
        self._folder = Path(tempfile.mkdtemp(prefix="llm-stack-"))
        # Sending to a pipe without a limit never blocks, so only the receiving end is asynchronous.
        self._to_core = self._context.socket(zmq.PUSH)
        self._from_core = self._async_context.socket(zmq.PULL)
        self._bind(self._to_core, TO_CORE_SOCKET)
        self._bind(self._from_core, FROM_CORE_SOCKET)
        self._process: subprocess.Popen[bytes] | None = None
        self._exited: asyncio.Future[int] | None = None
        self._closed = False

    @property
    def pid(self) -> int:
        """The core's process id."""
        if self._process is None:
            raise EngineDead("the core was not started")
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        """Whether the process runs."""
        return self._exited is not None and not self._exited.done()

    def start(self, options: EngineOptions) -> None:
        """Start the process; its first messages are `ModelFound` and `CoreInfo`, or `CoreFailed`."""
        loop = asyncio.get_running_loop()
        self._exited = loop.create_future()
        command = [sys.executable, "-m", "llm_engine.core.core_process", str(self._folder)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE)  # noqa: S603 - our own module
        watch = threading.Thread(target=self._watch, args=(loop, self._process, self._exited), daemon=True)
        watch.start()
        stdin = self._process.stdin
        if stdin is None:
            raise EngineDead("the core's standard input is missing")
        with contextlib.suppress(BrokenPipeError):  # it died at once: `receive` tells why
            stdin.write(msgspec.json.encode(options) + b"\n")
            stdin.flush()

    def send(self, message: ToCore) -> None:
        """Queue a message; never blocks.

        Raises:
            EngineDead: The core has ended.
        """
        if not self.is_alive or self._closed:
            raise EngineDead(self._death())
        self._to_core.send(self._codec.encode(message), zmq.NOBLOCK)

    async def receive(self) -> FromCore:
        """The next message of the core.

        Raises:
            EngineDead: The core has ended and nothing is left to read.
            StartupError: The core said that it failed.
        """
        if self._exited is None or self._closed:
            raise EngineDead("the core is not running")
        received = asyncio.ensure_future(self._from_core.recv())
        try:
            waiters: list[asyncio.Future[Any]] = [received, self._exited]
            await asyncio.wait(waiters, return_when=asyncio.FIRST_COMPLETED)
            if not received.done():  # its last words may still be on their way
                await asyncio.wait({received}, timeout=_LAST_WORDS_S)
            if not received.done():
                raise EngineDead(self._death())
        finally:
            if not received.done():
                received.cancel()
        message = self._codec.decode_from_core(received.result())
        if isinstance(message, CoreFailed):
            raise StartupError(message.reason, message.message)
        return message

    async def shutdown(self, timeout_s: float = 5.0) -> None:
        """End the process, by force after the timeout, and remove the sockets. Safe to call twice."""
        if self._closed:
            return
        with contextlib.suppress(EngineDead):
            self.send(Shutdown())
        self._closed = True
        try:
            if self._exited is not None:
                await asyncio.wait({self._exited}, timeout=timeout_s)
        finally:
            self.kill()

    def kill(self) -> None:
        """End the process at once and remove the sockets."""
        self._closed = True
        if self._process is not None:
            if self._process.stdin is not None:
                with contextlib.suppress(BrokenPipeError):
                    self._process.stdin.close()
            if self._process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(self._process.pid, signal.SIGKILL)
        self._from_core.close(linger=0)
        self._to_core.close(linger=0)
        self._context.term()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _bind(self, socket: "zmq.Socket[Any] | zmq.asyncio.Socket", name: str) -> None:
        socket.set_hwm(0)
        socket.bind(f"ipc://{self._folder / name}")

    def _death(self) -> str:
        """One line on how the process ended."""
        code = self._exited.result() if self._exited is not None and self._exited.done() else None
        if code is None:
            return "the engine core is not running"
        if code < 0:
            return f"the engine core (pid {self.pid}) was ended by {signal.Signals(-code).name}"
        return f"the engine core (pid {self.pid}) ended with exit code {code}"

    @staticmethod
    def _watch(
        loop: asyncio.AbstractEventLoop, process: "subprocess.Popen[bytes]", exited: "asyncio.Future[int]"
    ) -> None:
        code = process.wait()
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(_resolve, exited, code)


def _resolve(exited: "asyncio.Future[int]", code: int) -> None:
    if not exited.done():
        exited.set_result(code)
