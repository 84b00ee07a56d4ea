"""Owns the core's sockets: one for what comes in, one for each front end and the host; steps nothing.

A front end's request ids are its own, so an output finds its way by the id of its request.
"""

import contextlib
import logging
import time
from pathlib import Path

import zmq

from llm_engine.core.messages import (
    HOST,
    Abort,
    AddRequest,
    Codec,
    FromCore,
    FrontGone,
    Hello,
    Ping,
    Pong,
    PoolResult,
    PoolTexts,
    Refusal,
    Row,
    StatsReply,
    StepOutputs,
    ToCore,
    from_core_socket,
    front_of,
    to_core_socket,
)

_LOG = logging.getLogger(__name__)
_MAX_MESSAGES_PER_STEP = 1024
_LINGER_MS = 2000


class CoreDoor:
    """The core's ends of the pipes to its host and its front ends.

    Args:
        folder: The host's.
        generation: The core's number.
    """

    def __init__(self, folder: Path, generation: int) -> None:
        self._folder = folder
        self._generation = generation
        self._context = zmq.Context(io_threads=1)
        self._codec = Codec()
        self._inbox = self._context.socket(zmq.PULL)
        self._inbox.set_hwm(0)
        self._inbox.bind(f"ipc://{folder / to_core_socket(generation)}")
        self._outboxes = {HOST: self._connect(HOST)}
        self._gone: set[int] = set()
        self._fronts: dict[str, int] = {}

    def send(self, message: FromCore) -> None:
        """Queue a message to whom it concerns: a request's front end, who asked, else the host."""
        match message:
            case StepOutputs():
                self._send_outputs(message)
            case PoolResult():
                self._send_to(self._fronts.pop(message.request_id, None), message)
            case StatsReply():
                self._send_to(message.front, message)
            case _:
                self._send_to(HOST, message)

    def receive(self, wait_ms: int | None) -> list[ToCore]:
        """The messages that are here, at most so many that a step is not held up for long.

        What concerns front ends only is dealt with here; a front end that has gone shows as an `Abort`.

        Args:
            wait_ms: How long to wait for the first; None: until there is one.
        """
        if wait_ms != 0 and not self._inbox.poll(wait_ms):
            return []
        begun_s = time.monotonic()
        messages: list[ToCore] = []
        num_read = 0
        with contextlib.suppress(zmq.Again):
            while num_read < _MAX_MESSAGES_PER_STEP:
                message = self._codec.decode_to_core(self._inbox.recv(zmq.NOBLOCK))
                num_read += 1
                if (for_core := self._sorted(message)) is not None:
                    messages.append(for_core)
        if messages or not wait_ms:
            return messages
        left_ms = wait_ms - round((time.monotonic() - begun_s) * 1000)
        return self.receive(left_ms) if left_ms > 0 else messages

    def close(self) -> None:
        """Send what is queued and close."""
        self._context.destroy(linger=_LINGER_MS)

    def _sorted(self, message: ToCore) -> ToCore | None:
        """What the core is to do about a message; None: nothing."""
        match message:
            case AddRequest() | PoolTexts():
                front = front_of(message.request_id)
                if front not in self._outboxes:
                    return None  # it has gone meanwhile
                self._fronts[message.request_id] = front
            case Abort():
                for request_id in message.request_ids:
                    self._fronts.pop(request_id, None)
            case Hello():
                if message.front not in self._gone and message.front not in self._outboxes:
                    self._outboxes[message.front] = self._connect(message.front)
                return None
            case FrontGone():
                return self._part_from(message.front)
            case Ping():
                self.send(Pong(message.token))
                return None
        return message

    def _part_from(self, front: int) -> Abort | None:
        """Forget a front end; its requests are to end."""
        self._gone.add(front)  # its `Hello` may come later, on another pipe
        outbox = self._outboxes.pop(front, None)
        if outbox is not None:
            outbox.close(linger=0)
        lost = [request_id for request_id, owner in self._fronts.items() if owner == front]
        for request_id in lost:
            del self._fronts[request_id]
        _LOG.info("front end %d has gone, with %d requests", front, len(lost))
        return Abort(lost) if lost else None

    def _send_outputs(self, outputs: StepOutputs) -> None:
        rows: dict[int, list[Row]] = {}
        refusals: dict[int, list[Refusal]] = {}
        fronts = self._fronts
        for row in outputs.rows:
            request_id = row.request_id
            front = fronts.get(request_id)
            if front is None:
                continue  # it was aborted meanwhile
            if row.finish_reason is not None or row.error is not None:
                del fronts[request_id]
            if front in rows:
                rows[front].append(row)
            else:
                rows[front] = [row]
        for refusal in outputs.refusals:
            front = fronts.pop(refusal.request_id, None)
            if front is not None:
                refusals.setdefault(front, []).append(refusal)
        for front in rows.keys() | refusals.keys():
            self._send_to(front, StepOutputs(rows=rows.get(front, []), refusals=refusals.get(front, [])))

    def _send_to(self, front: int | None, message: FromCore) -> None:
        outbox = None if front is None else self._outboxes.get(front)
        if outbox is not None:
            outbox.send(self._codec.encode(message))

    def _connect(self, front: int) -> "zmq.Socket[bytes]":
        outbox = self._context.socket(zmq.PUSH)
        outbox.set_hwm(0)  # a slow front end must not stop the step loop
        outbox.setsockopt(zmq.LINGER, _LINGER_MS)
        outbox.connect(f"ipc://{self._folder / from_core_socket(front, self._generation)}")
        return outbox
