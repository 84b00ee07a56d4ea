"""Runs the lines of a batch, many at a time, and hands on the answers. Knows nothing of files or of HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass

from llm_stack_server.batch.files import Claim, Ledger
from llm_stack_server.batch.lines import BadLine, BatchRequest, Reply, answer_line, error_line
from llm_stack_server.errors import ServerError

# While the first of them runs, so many times `in_flight` lines may wait to be written in order.
_ORDERED_WINDOW = 4
_ENDED = frozenset({"engine_dead", "engine_stalled", "starting", "draining"})

Post = Callable[[str, bytes], Awaitable[Reply]]


@dataclass(slots=True)
class Counts:
    """How far a batch is."""

    done: int = 0
    failed: int = 0
    skipped: int = 0
    running: int = 0
    output_tokens: int = 0


class EngineGone(ServerError):
    """The engine ended in the middle of a batch; lines without an answer can be run again."""


class BatchRunner:
    """Runs lines.

    Args:
        post: Posts a body to a route.
        write: Takes the lines of the output.
        ledger: Knows what an earlier run answered.
        counts: Kept up to date, for whoever shows progress.
        in_flight: Most requests at a time.
        keep_order: Write answers in the order of the lines, not as they come.
    """

    def __init__(
        self,
        post: Post,
        write: Callable[[str], None],
        ledger: Ledger,
        counts: Counts,
        *,
        in_flight: int,
        keep_order: bool,
    ) -> None:
        self._post = post
        self._write = write
        self._ledger = ledger
        self._counts = counts
        self._keep_order = keep_order
        self._active = asyncio.Semaphore(in_flight)
        self._unwritten = asyncio.Semaphore(in_flight * _ORDERED_WINDOW if keep_order else in_flight)
        self._pending: dict[int, str] = {}
        self._next = 0
        self._ended = 0
        self._one_ended = asyncio.Condition()

    async def run(self, lines: Iterable[BatchRequest | BadLine]) -> None:
        """Run all lines that have no answer yet.

        Raises:
            EngineGone: the engine ended; what was answered is written.
        """
        place = 0
        try:
            async with asyncio.TaskGroup() as group:
                for line in lines:
                    await asyncio.sleep(0)  # a file of nothing but bad lines must not hold up the loop
                    found = self._claimed(line)
                    if found is None:
                        self._counts.skipped += 1
                        continue
                    await self._unwritten.acquire()
                    if isinstance(found, BadLine):
                        self._deliver(place, error_line(found), is_ok=False)
                    else:
                        group.create_task(self._run_one(place, found))
                    place += 1
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from None

    def _claimed(self, line: BatchRequest | BadLine) -> BatchRequest | BadLine | None:
        """What is to be done with a line; None where the output holds its answer."""
        if line.custom_id is not None:
            claim = self._ledger.claim(line.custom_id, line.number)
            if claim is Claim.DONE:
                return None
            if claim is Claim.DUPLICATE:
                # Without a name, so that nobody takes it for the answer to the line that had it first.
                message = f"custom_id: {line.custom_id[:100]!r} is the name of an earlier line"
                line = BadLine(line.number, None, "duplicate_custom_id", "custom_id", message)
        if line.custom_id is None and self._ledger.is_told(line.number):
            return None
        return line

    async def _run_one(self, place: int, request: BatchRequest) -> None:
        async with self._active:
            self._counts.running += 1
            try:
                reply = await self._answer(request)
            finally:
                self._counts.running -= 1
                self._ended += 1
                async with self._one_ended:
                    self._one_ended.notify_all()
        self._counts.output_tokens += reply.output_tokens
        self._deliver(place, answer_line(request, reply), is_ok=reply.is_ok)

    async def _answer(self, request: BatchRequest) -> Reply:
        """The route's answer; where the queue is full, that of another attempt once there is room."""
        while True:
            ended_before = self._ended
            was_alone = self._counts.running == 1
            reply = await self._post(request.url, request.body)
            if reply.status == 503 and reply.error_code in _ENDED:
                raise EngineGone(f"the engine has ended at line {request.number}; --resume runs what is left")
            if reply.status != 429:
                return reply
            self._counts.running -= 1  # it waits, so no one may wait for it
            try:
                async with self._one_ended:
                    while self._ended == ended_before:
                        if self._counts.running == 0 and was_alone:
                            return reply  # nothing else ran: there will never be more room
                        if self._counts.running == 0:
                            break  # once more, alone
                        await self._one_ended.wait()
            finally:
                self._counts.running += 1

    def _deliver(self, place: int, text: str, *, is_ok: bool) -> None:
        self._counts.done += is_ok
        self._counts.failed += not is_ok
        if not self._keep_order:
            self._write(text)
            self._unwritten.release()
            return
        self._pending[place] = text
        while self._next in self._pending:
            self._write(self._pending.pop(self._next))
            self._next += 1
            self._unwritten.release()
