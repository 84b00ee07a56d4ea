"""Owns the core's own process: its sockets, its main loop and its end; knows nothing of how the core steps.

Started as `python -m llm_engine.core.core_process FOLDER`, the options as a line of JSON on standard input.
Standard input then stays open for the life of the front end: its end tells that the front end is gone,
however it went, and the process ends too. SIGINT and SIGTERM are left to the front end, which drains and says
`Shutdown`.
"""

import contextlib
import logging
import os
import signal
import sys
import threading
from pathlib import Path

import msgspec
import zmq

from llm_engine.core.engine_core import EngineCore
from llm_engine.core.messages import (
    FROM_CORE_SOCKET,
    TO_CORE_SOCKET,
    Abort,
    AddRequest,
    Codec,
    CoreFailed,
    FromCore,
    ModelFound,
    Shutdown,
    StatsReply,
    StatsRequest,
    ToCore,
)
from llm_engine.core.pooling_core import start_pooling_core
from llm_engine.core.startup import one_line, start_core
from llm_engine.errors import StartupError
from llm_engine.options import EngineOptions
from llm_engine.start_profile import StartRecorder, now_s

_MAX_MESSAGES_PER_STEP = 1024
_NOTHING_RAN_WAIT_MS = 2
_LINGER_MS = 2000
_FIRST_IDLE_MS = 300  # requests that wait for the start come first


class CoreSockets:
    """The core's ends of the two pipes to the front end.

    Args:
        folder: Where the front end has bound them.
    """

    def __init__(self, folder: Path) -> None:
        self._context = zmq.Context(io_threads=1)
        self._codec = Codec()
        self._inbox = self._context.socket(zmq.PULL)
        self._inbox.set_hwm(0)
        self._inbox.connect(f"ipc://{folder / TO_CORE_SOCKET}")
        self._outbox = self._context.socket(zmq.PUSH)
        self._outbox.set_hwm(0)  # a slow front end must not stop the step loop
        self._outbox.setsockopt(zmq.LINGER, _LINGER_MS)
        self._outbox.connect(f"ipc://{folder / FROM_CORE_SOCKET}")

    def send(self, message: FromCore) -> None:
        """Queue a message to the front end."""
        self._outbox.send(self._codec.encode(message))

    def receive(self, wait_ms: int | None) -> list[ToCore]:
        """The messages that are here, at most so many that a step is not held up for long.

        Args:
            wait_ms: How long to wait for the first; None: until there is one.
        """
        messages: list[ToCore] = []
        if wait_ms != 0 and not self._inbox.poll(wait_ms):
            return messages
        with contextlib.suppress(zmq.Again):
            while len(messages) < _MAX_MESSAGES_PER_STEP:
                messages.append(self._codec.decode_to_core(self._inbox.recv(zmq.NOBLOCK)))
        return messages

    def close(self) -> None:
        """Send what is queued and close."""
        self._context.destroy(linger=_LINGER_MS)


def serve(core: EngineCore, sockets: CoreSockets) -> None:
    """Run the core until `Shutdown`: blocked on the socket when idle, never when there is work."""
    wait_ms: int | None = _FIRST_IDLE_MS
    while True:
        for message in sockets.receive(wait_ms):
            match message:
                case AddRequest() | Abort():
                    core.intake([message])
                case StatsRequest():
                    sockets.send(StatsReply(message.token, core.stats(check_cache=message.check_cache)))
                case Shutdown():
                    return
        wait_ms = None
        if core.has_work():
            outputs = core.step()
            if outputs.rows or outputs.refusals:
                sockets.send(outputs)
            wait_ms = 0 if core.made_progress else _NOTHING_RAN_WAIT_MS
        elif core.use_idle_time():
            wait_ms = 0


def main(arguments: list[str]) -> int:
    """Run a core; returns the exit code, non-zero after a fault."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    logging.basicConfig(format="%(asctime)s %(levelname)s core: %(message)s")
    recorder = StartRecorder()
    recorder.add_process(now_s())
    options = msgspec.json.decode(sys.stdin.buffer.readline(), type=EngineOptions)
    threading.Thread(target=_exit_with_front_end, daemon=True, name="front-end-watch").start()
    sockets = CoreSockets(Path(arguments[0]))
    try:
        pooling = start_pooling_core(options, lambda path: sockets.send(ModelFound(tokenizer_path=path)))
        if pooling is not None:
            sockets.send(pooling.ready)
            pooling.serve(sockets)
            return 0
        core = start_core(options, lambda _, path: sockets.send(ModelFound(tokenizer_path=path)), recorder)
        sockets.send(core.info)
        serve(core, sockets)
        core.shutdown()
    except StartupError as error:
        sockets.send(CoreFailed(error.reason, error.message))
        return 1
    except Exception as error:
        sockets.send(CoreFailed(type(error).__name__, one_line(error)))
        raise
    finally:
        sockets.close()
    return 0


def _exit_with_front_end() -> None:
    """Wait for the end of standard input, then end this process, whatever it is doing.

    Reads the descriptor: a thread inside the buffered reader would hold its lock when the interpreter ends.
    """
    while os.read(sys.stdin.fileno(), 4096):
        pass
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
