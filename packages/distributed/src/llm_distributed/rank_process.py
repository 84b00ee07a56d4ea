"""The program of one rank: builds its worker, runs commands in order, replies; knows no other rank.

Started as `python -m llm_distributed.rank_process FOLDER RANK CODEC`. Two threads: this one takes commands
and starts work; a second waits for results and sends replies, so that the next step starts before the last
one's result is there. Standard input is a pipe from the executor: when it closes, the executor is gone and
this process ends at once.
"""

from __future__ import annotations

import os
import queue
import sys
import threading
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch.distributed as dist
import zmq
from torch._C._distributed_c10d import FileStore

from llm_distributed.channel import (
    Call,
    Reply,
    Setup,
    Step,
    Stop,
    command_address,
    receive_command,
    reply_address,
    send,
)
from llm_distributed.errors import ExecutorError
from llm_distributed.executor import Codec
from llm_distributed.import_paths import load_object
from llm_distributed.mesh import connect
from llm_distributed.tracebacks import last_line

ORPHANED = 78

# What the replying thread does for a command: waits, then gives the value.
_Waiter = Callable[[], Any]


def main(folder: str, rank: int, codec_path: str) -> int:
    """Runs until told to stop.

    Args:
        folder: The executor's folder.
        rank: This rank.
        codec_path: Import path of the codec's factory.

    Returns:
        The exit status.
    """
    threading.Thread(target=_end_with_parent, daemon=True).start()
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    commands, replies = context.socket(zmq.PULL), context.socket(zmq.PUSH)
    for socket in (commands, replies):
        socket.setsockopt(zmq.SNDHWM, 0)
        socket.setsockopt(zmq.RCVHWM, 0)
    commands.bind(command_address(folder, rank))
    replies.connect(reply_address(folder, rank))
    waiting: queue.SimpleQueue[tuple[int, _Waiter] | None] = queue.SimpleQueue()
    try:
        codec: Codec = load_object(codec_path)()
        worker = _set_up(commands, codec)
    except Exception as error:  # noqa: BLE001  (told to the executor, which raises it)
        send(replies, _error_reply(0, error))
        context.destroy(linger=2000)
        return 1
    sender = threading.Thread(target=_send_replies, args=(waiting, replies, codec), daemon=True)
    waiting.put((0, lambda: None))
    sender.start()
    _serve(commands, _Rank(worker, codec, rank), waiting)
    waiting.put(None)
    sender.join()
    _close(worker)
    context.destroy(linger=2000)
    return 0


def _set_up(commands: zmq.Socket[bytes], codec: Codec) -> Any:  # noqa: ANN401  (the worker)
    setup, frames = receive_command(commands)
    if not isinstance(setup, Setup):
        raise ExecutorError(f"expected the setup first, got {type(setup).__name__}")
    store = FileStore(setup.store_path, _size(setup.axes))
    mesh = connect(setup.axes, setup.rank, store, backend=setup.backend, timeout_s=setup.collective_timeout_s)
    return load_object(setup.factory)(mesh, **codec.decode(frames))


def _serve(
    commands: zmq.Socket[bytes], rank: _Rank, waiting: queue.SimpleQueue[tuple[int, _Waiter] | None]
) -> None:
    while True:
        command, frames = receive_command(commands)
        if isinstance(command, Stop):
            return
        if isinstance(command, Setup):
            raise ExecutorError("a second setup")
        waiting.put((command.sequence, rank.start(command, frames)))


@dataclass(frozen=True, slots=True)
class _Rank:
    """The worker of this rank, and how commands reach it."""

    worker: Any
    codec: Codec
    rank: int

    def start(self, command: Step | Call, frames: list[memoryview]) -> _Waiter:
        """Does the command's work, as far as it does not wait, on this thread."""
        try:
            arguments = self.codec.decode(frames)
            if isinstance(command, Call):
                value = getattr(self.worker, command.method)(*arguments)
                return lambda: value
            wait: _Waiter = self.worker.execute(arguments).result
        except Exception as error:  # noqa: BLE001  (told to the executor, which raises it)
            return _raiser(error)
        # Only rank 0's result is of interest; the others say that they are done.
        return wait if self.rank == 0 else _drop_value(wait)


def _drop_value(wait: _Waiter) -> _Waiter:
    def wait_only() -> None:
        wait()

    return wait_only


def _raiser(error: Exception) -> _Waiter:
    def raise_it() -> Any:  # noqa: ANN401
        raise error

    return raise_it


def _send_replies(
    waiting: queue.SimpleQueue[tuple[int, _Waiter] | None], replies: zmq.Socket[bytes], codec: Codec
) -> None:
    while (item := waiting.get()) is not None:
        sequence, wait = item
        try:
            frames = codec.encode(wait())
        except Exception as error:  # noqa: BLE001  (told to the executor, which raises it)
            send(replies, _error_reply(sequence, error))
        else:
            send(replies, Reply(sequence, "value"), frames)


def _error_reply(sequence: int, error: Exception) -> Reply:
    return Reply(
        sequence,
        "error",
        error_type=type(error).__name__,
        message=str(error),
        reason=last_line(error),
        details="".join(traceback.format_exception(error)),
    )


def _close(worker: Any) -> None:  # noqa: ANN401
    close = getattr(worker, "close", None)
    if close is not None:
        close()
    if dist.is_initialized():
        dist.destroy_process_group()


def _size(axes: dict[str, int]) -> int:
    size = 1
    for length in axes.values():
        size *= length
    return size


def _end_with_parent() -> None:
    """Ends the process when the executor's end of the pipe closes, even if the executor was killed."""
    while os.read(0, 1):
        pass
    os._exit(ORPHANED)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2]), sys.argv[3]))
