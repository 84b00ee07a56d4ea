"""Carries messages between a supervisor and one worker, both ways. Knows nothing of what they mean."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from typing import Protocol, Self

import msgspec

from llm_stack_server.errors import ApiError
from llm_stack_server.supervisor.messages import Answer, Ask, Frame, Question, Refused, Reply, Told

_LOG = logging.getLogger("llm_stack_server")
_LENGTH_BYTES = 4


class ChannelClosed(Exception):
    """The other side is gone."""


class ChannelOwner(Protocol):
    """What a channel tells."""

    def hear(self, message: Told) -> None:
        """The other side says something."""
        ...

    async def answer(self, question: Question) -> Answer:
        """The other side asks something. An `ApiError` reaches the one who asks."""
        ...


class Channel:
    """One end. All methods belong to one event loop; `run` reads until the other side is gone."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder: msgspec.msgpack.Decoder[Frame] = msgspec.msgpack.Decoder(Frame)
        self._asked: dict[int, asyncio.Future[Answer]] = {}
        self._num_asked = 0
        self._answering: set[asyncio.Task[None]] = set()

    @classmethod
    async def over(cls, end: socket.socket) -> Self:
        """A channel over one end of a socket pair, which it owns from now on."""
        return cls(*await asyncio.open_unix_connection(sock=end))

    async def run(self, owner: ChannelOwner) -> None:
        """Take in what the other side says, until it is gone. Questions are answered side by side."""
        try:
            while True:
                match await self._receive():
                    case Ask() as asked:
                        task = asyncio.create_task(self._answer(owner, asked))
                        self._answering.add(task)
                        task.add_done_callback(self._answering.discard)
                        await asyncio.sleep(0)  # what it takes note of stands before the next message
                    case Reply() as reply:
                        waiting = self._asked.pop(reply.number, None)
                        if waiting is not None and not waiting.done():
                            waiting.set_result(reply.answer)
                    case message:
                        owner.hear(message)
        except (asyncio.IncompleteReadError, OSError):
            return  # gone
        finally:
            self.close()

    def tell(self, message: Told) -> None:
        """Say something; it goes nowhere when the other side is gone."""
        self._send(message)

    async def ask(self, question: Question) -> Answer:
        """Ask something. Cancelling the wait does not take the question back.

        Raises:
            ApiError: As the other side raised it.
            ChannelClosed: The other side is gone.
        """
        if self._writer.is_closing():
            raise ChannelClosed
        self._num_asked += 1
        number = self._num_asked
        waiting: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._asked[number] = waiting
        try:
            self._send(Ask(number, question))
            answer = await waiting
        finally:
            self._asked.pop(number, None)
        if isinstance(answer, Refused):
            raise _as_error(answer)
        return answer

    async def flush(self) -> None:
        """Wait until what was said is on its way."""
        with contextlib.suppress(OSError, RuntimeError):
            await self._writer.drain()

    def close(self) -> None:
        """End it: who waits for an answer gets `ChannelClosed`."""
        for task in self._answering:
            task.cancel()
        for waiting in self._asked.values():
            if not waiting.done():
                waiting.set_exception(ChannelClosed())
        self._asked.clear()
        with contextlib.suppress(OSError, RuntimeError):
            self._writer.close()

    async def _answer(self, owner: ChannelOwner, asked: Ask) -> None:
        try:
            answer = await owner.answer(asked.question)
        except ApiError as error:
            answer = Refused(
                error.status, error.message, error.error_type, error.param, error.code, error.headers
            )
        except ChannelClosed:
            answer = Refused(503, "a process of the server died", "server_error", None, "unavailable", {})
        except Exception:  # noqa: BLE001 - the one who asks must not wait for ever
            _LOG.exception("a question of another process was not answered")
            answer = Refused(500, "internal error", "server_error", None, "internal_error", {})
        self._send(Reply(asked.number, answer))

    async def _receive(self) -> Frame:
        length = int.from_bytes(await self._reader.readexactly(_LENGTH_BYTES), "little")
        return self._decoder.decode(await self._reader.readexactly(length))

    def _send(self, frame: Frame) -> None:
        if self._writer.is_closing():
            return
        data = self._encoder.encode(frame)
        with contextlib.suppress(OSError, RuntimeError):
            self._writer.write(len(data).to_bytes(_LENGTH_BYTES, "little") + data)


def _as_error(refused: Refused) -> ApiError:
    return ApiError(
        refused.status,
        refused.message,
        error_type=refused.error_type,
        param=refused.param,
        code=refused.code,
        headers=refused.headers,
    )
