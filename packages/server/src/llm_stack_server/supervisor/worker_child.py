"""One worker process, from its parent's view: its start, its channel, its end. Decides nothing."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence

import msgspec

from llm_stack_server.supervisor.messages import Boot

WORKER_COMMAND = (sys.executable, "-m", "llm_stack_server.supervisor.worker_process")


class WorkerChild:
    """A worker process. All methods belong to the event loop that made it.

    Args:
        command: What to run.
        boot: Makes what it is told, given the file descriptor of its end of the control channel.
        listener: The socket that it accepts at.

    Attributes:
        control: Our end of the control channel.
        exited: Its exit code, once it has ended; negative: the signal that ended it.
    """

    def __init__(self, command: Sequence[str], boot: Callable[[int], Boot], listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        self.exited: asyncio.Future[int] = loop.create_future()
        self.control, theirs = socket.socketpair()
        self.control.setblocking(False)
        with theirs:
            # A process group of its own: a terminal's Ctrl-C is for the supervisor, which tells the workers.
            self._process = subprocess.Popen(  # noqa: S603 - our own program
                command,
                stdin=subprocess.PIPE,
                pass_fds=(listener.fileno(), theirs.fileno()),
                process_group=0,
            )
            told = msgspec.json.encode(boot(theirs.fileno())) + b"\n"
        threading.Thread(target=self._watch, args=(loop,), daemon=True, name="worker-watch").start()
        assert self._process.stdin is not None
        self._stdin = self._process.stdin  # it stays open: its end tells the worker that we are gone
        with contextlib.suppress(BrokenPipeError):  # it died at once
            self._stdin.write(told)
            self._stdin.flush()

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    def kill(self) -> None:
        """End the process at once."""
        if not self.exited.done():
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()

    def close(self) -> None:
        """End the process and let go of its standard input."""
        self.kill()
        with contextlib.suppress(BrokenPipeError):
            self._stdin.close()

    def death(self) -> str:
        """How the process ended."""
        code = self.exited.result()
        if code < 0:
            return f"(pid {self.pid}) was ended by {signal.Signals(-code).name}"
        return f"(pid {self.pid}) ended with exit code {code}"

    def _watch(self, loop: asyncio.AbstractEventLoop) -> None:
        code = self._process.wait()
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(self._note_exit, code)

    def _note_exit(self, code: int) -> None:
        if not self.exited.done():
            self.exited.set_result(code)
