"""The executor of one process per rank on this host; knows nothing of what plans and workers do.

Commands go to all ranks, in order; every rank answers each of them, rank 0 of a step with the result. When a
rank raises and others are still at it after a grace time (they wait in a collective for it), the step cannot
be ended cleanly and the whole group is taken down; when all have answered, only the step failed.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections import deque
from collections.abc import Mapping
from typing import Any

import zmq

from llm_distributed.channel import (
    Call,
    Command,
    Reply,
    Setup,
    Step,
    Stop,
    command_address,
    receive_reply,
    reply_address,
    send,
)
from llm_distributed.errors import CallFailed, ExecutorError, NotRunning, StartFailed, StepFailed, WorkerDied
from llm_distributed.executor import Codec, PendingResult
from llm_distributed.import_paths import load_object
from llm_distributed.mesh import AXES
from llm_distributed.rank_group import RankGroup

_POLL_MS = 100
_STOP_GRACE_S = 5.0

Answer = tuple[Reply, list[memoryview]]


class MultiprocessExecutor:
    """Runs one worker process per rank, joined by a process group along the axis `axis`.

    Not thread-safe: one thread makes all calls and takes all results.

    Args:
        factory: "module:callable", imported and called on every rank as `factory(mesh, **kwargs)`.
        kwargs: Arguments of the factory; they travel through the codec.
        world_size: Number of ranks.
        codec: "module:attribute" of a callable without arguments that makes a `Codec`.
        axis: The mesh axis that the ranks form.
        backend: "gloo" for CPU tensors, "nccl" for CUDA tensors.
        start_timeout_s: How long building the workers may take.
        failure_grace_s: How long the others may take to end a step that a rank has raised in.
        collective_timeout_s: After it a collective that a rank never joined fails.

    Raises:
        ExecutorError: `world_size`, `axis` or an import path cannot be.
    """

    def __init__(
        self,
        factory: str,
        kwargs: Mapping[str, Any] | None = None,
        world_size: int = 1,
        codec: str = "llm_distributed:MsgpackCodec",
        *,
        axis: str = "tp",
        backend: str = "gloo",
        start_timeout_s: float = 600.0,
        failure_grace_s: float = 5.0,
        collective_timeout_s: float = 600.0,
    ) -> None:
        if world_size < 1:
            raise ExecutorError(f"world_size: must be at least 1, got {world_size}")
        if axis not in AXES:
            raise ExecutorError(f"axis: {axis!r} is none of {', '.join(AXES)}")
        self._factory = factory
        self._kwargs = dict(kwargs or {})
        self._world_size = world_size
        self._codec_path = codec
        self._codec: Codec = load_object(codec)()
        self._axis, self._backend = axis, backend
        self._start_timeout_s, self._failure_grace_s = start_timeout_s, failure_grace_s
        self._collective_timeout_s = collective_timeout_s
        self._running: _Running | None = None

    @property
    def mesh_size(self) -> int:
        """Number of ranks."""
        return self._world_size

    @property
    def pids(self) -> list[int]:
        """Process ids by rank."""
        return self._need_running().group.pids

    def start(self) -> None:
        """Starts the processes and waits until every worker is built; raises `StartFailed`."""
        if self._running is not None:
            raise ExecutorError("the executor is running already")
        kwargs = self._codec.encode(self._kwargs)
        running = _Running(self._world_size, self._codec_path, self._failure_grace_s)
        try:
            axes = {axis: self._world_size if axis == self._axis else 1 for axis in AXES}
            for rank in range(self._world_size):
                setup = Setup(
                    factory=self._factory,
                    axes=axes,
                    rank=rank,
                    backend=self._backend,
                    store_path=f"{running.folder}/store",
                    collective_timeout_s=self._collective_timeout_s,
                )
                send(running.commands[rank], setup, kwargs)
            running.wait_for_start(self._start_timeout_s)
        except BaseException:
            running.close(grace_s=0)
            raise
        self._running = running

    def call(self, method: str, *args: Any) -> list[Any]:  # noqa: ANN401  (any method of any worker)
        """Calls a method on every rank after all plans sent before; results by rank.

        Raises:
            CallFailed: It raised on some rank; the executor lives on.
            WorkerDied: A rank is gone; so are all others.
        """
        running = self._need_running()
        frames = self._codec.encode(args)
        sequence = running.next_sequence()
        running.broadcast(Call(sequence, method), frames)
        answers = running.wait(sequence)
        running.forget(sequence)
        for rank, (reply, _) in enumerate(answers):
            if reply.kind == "error":
                raise CallFailed(method, rank, reply.error_type, reply.message, reply.details)
        return [self._codec.decode(frames) for _, frames in answers]

    def submit(self, plan: Any) -> PendingResult[Any]:  # noqa: ANN401  (any plan the codec knows)
        """Sends a plan to every rank; returns at once. Raises `WorkerDied` if a rank is known to be gone."""
        running = self._need_running()
        frames = self._codec.encode(plan)
        sequence = running.next_sequence()
        running.broadcast(Step(sequence), frames)
        return _PendingStep(running, sequence, self._codec)

    def check(self) -> None:
        """Raises `WorkerDied` if a rank is known to be gone."""
        self._need_running().check()

    def shutdown(self) -> None:
        """Ends all processes, gently first; may be called twice."""
        running, self._running = self._running, None
        if running is not None:
            running.close(grace_s=_STOP_GRACE_S)

    def _need_running(self) -> _Running:
        if self._running is None:
            raise NotRunning("the executor is not running: call start() first")
        return self._running


class _Running:
    """The processes and sockets of a started executor, and the answers that have come."""

    def __init__(self, world_size: int, codec_path: str, failure_grace_s: float) -> None:
        # mkdtemp makes the folder with mode 0700: no other user can reach the sockets in it.
        self.folder = tempfile.mkdtemp(prefix="llm-stack-")
        self._failure_grace_s = failure_grace_s
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.commands = [self._connect(command_address(self.folder, r)) for r in range(world_size)]
        self.replies = [self._bind(reply_address(self.folder, r)) for r in range(world_size)]
        self._poller = zmq.Poller()
        for socket in self.replies:
            self._poller.register(socket, zmq.POLLIN)
        self._arrived: list[deque[Answer]] = [deque() for _ in range(world_size)]
        self._sequence = 0
        self._taken = -1
        self._results: dict[int, list[Answer]] = {}
        self.group = RankGroup()
        self.group.start(
            [
                ["-m", "llm_distributed.rank_process", self.folder, str(rank), codec_path]
                for rank in range(world_size)
            ]
        )

    def next_sequence(self) -> int:
        """Number of the next command; 0 is the setup."""
        self.check()
        self._sequence += 1
        return self._sequence

    def broadcast(self, command: Command, frames: Any) -> None:  # noqa: ANN401
        """Sends a command to every rank."""
        for socket in self.commands:
            send(socket, command, frames)

    def check(self) -> None:
        """Raises `WorkerDied` if the group is gone."""
        death = self.group.death
        if death is not None:
            raise WorkerDied(death.rank, death.reason)

    def wait(self, sequence: int) -> list[Answer]:
        """Waits until every rank has answered a command; the same answers each time until `forget`."""
        while self._taken < sequence:
            self._results[self._taken + 1] = self._wait_for_all()
            self._taken += 1
        return self._results[sequence]

    def poll(self, sequence: int) -> bool:
        """Whether `wait` would return, or raise, at once."""
        self._receive(0)
        ready = self._taken + min(len(queue) for queue in self._arrived)
        return ready >= sequence or self.group.death is not None

    def forget(self, sequence: int) -> None:
        """Drops answers that nobody will ask for again."""
        self._results.pop(sequence, None)

    def wait_for_start(self, timeout_s: float) -> None:
        """Waits for the answers to the setup; raises `StartFailed`."""
        deadline = time.monotonic() + timeout_s
        while not all(self._arrived):
            self._receive(_POLL_MS)
            self._raise_start_errors()
            if self.group.death is not None:
                # The reply with the reason may still be in the socket, behind the exit.
                self._receive(_POLL_MS)
                self._raise_start_errors()
                raise StartFailed(self.group.death.rank, self.group.death.reason)
            if time.monotonic() > deadline:
                late = next(rank for rank, queue in enumerate(self._arrived) if not queue)
                raise StartFailed(late, f"not ready after {timeout_s:.0f} s")
        for queue in self._arrived:
            queue.popleft()
        self._taken = 0

    def close(self, *, grace_s: float) -> None:
        """Ends the processes and removes the folder."""
        if self.group.death is None and grace_s > 0:
            self.broadcast(Stop(), [])
        self.group.end(grace_s=grace_s)
        self._context.destroy(linger=0)
        shutil.rmtree(self.folder, ignore_errors=True)

    def _connect(self, address: str) -> zmq.Socket[bytes]:
        # The ranks bind: a connecting socket queues what is sent before its peer is there, a bound one
        # blocks.
        socket = self._context.socket(zmq.PUSH)
        socket.setsockopt(zmq.SNDHWM, 0)
        socket.setsockopt(zmq.RECONNECT_IVL, 20)
        socket.connect(address)
        return socket

    def _bind(self, address: str) -> zmq.Socket[bytes]:
        socket = self._context.socket(zmq.PULL)
        socket.setsockopt(zmq.RCVHWM, 0)
        socket.bind(address)
        return socket

    def _receive(self, timeout_ms: int) -> None:
        for socket, _ in self._poller.poll(timeout_ms):
            self._arrived[self.replies.index(socket)].append(receive_reply(socket))

    def _wait_for_all(self) -> list[Answer]:
        failed_since: float | None = None
        while not all(self._arrived):
            self._receive(_POLL_MS)
            self.check()
            failed = [
                rank for rank, queue in enumerate(self._arrived) if queue and queue[0][0].kind == "error"
            ]
            if not failed or all(self._arrived):
                continue
            failed_since = failed_since or time.monotonic()
            if time.monotonic() - failed_since > self._failure_grace_s:
                self._give_up(failed[0])
        return [queue.popleft() for queue in self._arrived]

    def _give_up(self, failed: int) -> None:
        stuck = [rank for rank, queue in enumerate(self._arrived) if not queue]
        reason = self._arrived[failed][0][0].reason
        death = self.group.declare_dead(
            failed, f"it raised while ranks {stuck} went on to wait for it: {reason}"
        )
        raise WorkerDied(death.rank, death.reason)

    def _raise_start_errors(self) -> None:
        for rank, queue in enumerate(self._arrived):
            if queue and queue[0][0].kind == "error":
                raise StartFailed(rank, queue[0][0].reason, queue[0][0].details)


class _PendingStep:
    """The result of a plan that was sent."""

    def __init__(self, running: _Running, sequence: int, codec: Codec) -> None:
        self._running = running
        self._sequence = sequence
        self._codec = codec
        self._outcome: tuple[Any, StepFailed | None] | None = None

    def done(self) -> bool:
        """Whether `result` would answer at once."""
        return self._outcome is not None or self._running.poll(self._sequence)

    def result(self) -> Any:  # noqa: ANN401  (the result of any worker)
        """Rank 0's result; raises `StepFailed` or `WorkerDied`."""
        if self._outcome is None:
            self._outcome = self._take()
        value, error = self._outcome
        if error is not None:
            raise error
        return value

    def _take(self) -> tuple[Any, StepFailed | None]:
        answers = self._running.wait(self._sequence)
        self._running.forget(self._sequence)
        for rank, (reply, _) in enumerate(answers):
            if reply.kind == "error":
                return None, StepFailed(rank, reply.reason, reply.details)
        return self._codec.decode(answers[0][1]), None
