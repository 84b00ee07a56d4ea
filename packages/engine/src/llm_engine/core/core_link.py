"""Owns a front end's hold on a core that a host runs: messages, and the news of its life.

Knows nothing of what the messages mean. Each core has sockets of its own: what was sent to one that died is
dropped with its socket, and what it said last is read to the end before the next is spoken to.
"""

import asyncio
import contextlib
import logging
from pathlib import Path
from typing import Protocol, Self

import msgspec
import zmq
import zmq.asyncio

from llm_engine.core.core_state import HOST_SOCKET, CoreState, FrontHello, HostNotice
from llm_engine.core.messages import (
    Codec,
    CoreInfo,
    FromCore,
    Hello,
    PoolingReady,
    ToCore,
    from_core_socket,
    to_core_socket,
)
from llm_engine.errors import EngineDead, EngineError, EngineRestarting, StartupError

_LOG = logging.getLogger(__name__)
_LINE_LIMIT = 1 << 26
_LAST_WORDS_S = 0.02
_RETRY_AFTER_S = 2.0


class LinkOwner(Protocol):
    """What a link tells. Called in its event loop; errors end the link."""

    def take(self, message: FromCore) -> None:
        """The core says something."""
        ...

    def core_up(self, ended: dict[str, str]) -> None:
        """A new core is ready; it knows of no request. Those in `ended` must not be sent to it."""
        ...

    def core_down(self) -> None:
        """The core has died and another is being started."""
        ...

    def core_dead(self, death: EngineDead) -> None:
        """There will be no other core."""
        ...


class CoreLink:
    """A front end's hold on a core; made by `open`."""

    def __init__(
        self, folder: Path, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, notice: HostNotice
    ) -> None:
        self._folder = folder
        self._reader = reader
        self._writer = writer
        self._notice = notice
        self._codec = Codec()
        self._context = zmq.Context(io_threads=1)
        self._async_context = zmq.asyncio.Context.shadow(self._context)
        self._owner: LinkOwner | None = None
        self._generation = 0
        self._to_core: zmq.Socket[bytes] | None = None
        self._from_core: zmq.asyncio.Socket | None = None
        self._num_received = 0
        self._listener: asyncio.Task[None] | None = None
        self._follower: asyncio.Task[None] | None = None
        self._death: EngineDead | None = None
        self._closed = False

    @classmethod
    async def open(cls, folder: Path, name: str) -> Self:
        """Connect to a host, whose core need not be ready.

        Raises:
            StartupError: No host is there.
        """
        try:
            reader, writer = await asyncio.open_unix_connection(folder / HOST_SOCKET, limit=_LINE_LIMIT)
            writer.write(msgspec.json.encode(FrontHello(name=name)) + b"\n")
            notice = await _read_notice(reader)
        except OSError as error:
            raise StartupError("NoHost", f"no engine is hosted in {folder}: {error}") from error
        except EngineDead as error:
            raise StartupError("NoHost", str(error)) from error
        return cls(folder, reader, writer, notice)

    @property
    def front(self) -> int:
        """This front end's number."""
        return self._notice.front

    @property
    def state(self) -> CoreState:
        """The core's state, as far as it is known here."""
        if self._death is not None and self._notice.state.phase != "dead":
            return msgspec.structs.replace(
                self._notice.state, phase="dead", reason=str(self._death), pid=None
            )
        return self._notice.state

    @property
    def is_up(self) -> bool:
        """Whether messages go to a core that runs, as far as is known."""
        return self._to_core is not None

    async def tokenizer_path(self) -> str | None:
        """The path of the model's tokenizer, as soon as it is known; None: it has none.

        Raises:
            StartupError: The core could not start.
        """
        while not self._notice.found:
            await self._next_notice()
        return self._notice.tokenizer_path

    async def ready(self) -> CoreInfo | PoolingReady:
        """What the core told of its model, once one is ready.

        Raises:
            StartupError: It could not start.
        """
        while self._notice.state.phase != "running" or self._notice.ready is None:
            await self._next_notice()
        return self._notice.ready

    def follow(self, owner: LinkOwner) -> None:
        """Begin to tell the owner of everything; the core is ready."""
        self._owner = owner
        self._attach()
        self._follower = asyncio.create_task(self._follow(owner), name="core-news")

    def send(self, message: ToCore) -> None:
        """Queue a message; never blocks.

        Raises:
            EngineDead: There is no core any more.
            EngineRestarting: There is none now.
        """
        if self._death is not None:
            raise EngineDead(str(self._death))
        if self._to_core is None:
            raise EngineRestarting(_RETRY_AFTER_S)
        self._to_core.send(self._codec.encode(message), zmq.NOBLOCK)

    async def close(self) -> None:
        """Part from the core, which ends this front end's requests. Safe to call twice."""
        if self._closed:
            return
        self._closed = True
        if self._death is None:
            self._death = EngineDead("the engine was shut down")
        tasks = [task for task in (self._follower, self._listener) if task is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        self._drop_sockets()
        self._context.term()
        self._writer.close()
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()

    # The host's news

    async def _next_notice(self) -> None:
        """Before `follow`: the next news, or why there will be no core."""
        state = self._notice.state
        if state.phase == "dead":
            raise StartupError(*(self._notice.failure or ("EngineDead", state.reason)))
        try:
            self._notice = await _read_notice(self._reader)
        except EngineDead as error:
            raise StartupError("EngineDead", str(error)) from error

    async def _follow(self, owner: LinkOwner) -> None:
        try:
            while True:
                self._notice = await _read_notice(self._reader)
                if self._notice.replaced:
                    raise EngineDead("another front end of the same name has taken its place")
                await self._note(owner, self._notice.state)
        except EngineError as error:
            self._die(owner, error)
        except Exception as error:  # noqa: BLE001 - whatever it is, those who wait must be told
            _LOG.exception("the front end cannot go on")
            self._die(owner, error)

    async def _note(self, owner: LinkOwner, state: CoreState) -> None:
        if self.is_up and (state.phase != "running" or state.generation != self._generation):
            await self._detach()
            if state.phase != "dead":
                owner.core_down()
        if state.phase == "dead":
            raise EngineDead(state.reason)
        if state.phase == "running" and not self.is_up:
            self._attach()
            owner.core_up(self._notice.ended)

    def _die(self, owner: LinkOwner, error: Exception) -> None:
        if self._death is None:
            self._death = (
                error if isinstance(error, EngineDead) else EngineDead(f"the engine failed: {error}")
            )
            owner.core_dead(self._death)

    # The core's messages

    def _attach(self) -> None:
        """Make sockets for the core that runs now, and announce this front end."""
        self._generation = self._notice.state.generation
        self._from_core = self._async_context.socket(zmq.PULL)
        self._from_core.set_hwm(0)
        self._from_core.bind(f"ipc://{self._folder / from_core_socket(self.front, self._generation)}")
        self._to_core = self._context.socket(zmq.PUSH)
        self._to_core.set_hwm(0)
        self._to_core.connect(f"ipc://{self._folder / to_core_socket(self._generation)}")
        self._to_core.send(self._codec.encode(Hello(self.front)))
        self._listener = asyncio.create_task(self._listen(self._from_core), name="core-messages")

    async def _detach(self) -> None:
        """Read a dead core's last words, then drop its sockets.

        Nothing is cancelled before: a message must not get lost between two that are read.
        """
        if self._to_core is not None:
            self._to_core.close(linger=0)
            self._to_core = None
        seen = -1
        while seen != self._num_received:
            seen = self._num_received
            await asyncio.sleep(_LAST_WORDS_S)
        self._drop_sockets()
        if self._listener is not None:
            self._listener.cancel()
            await asyncio.wait({self._listener})
            self._listener = None

    def _drop_sockets(self) -> None:
        if self._to_core is not None:
            self._to_core.close(linger=0)
            self._to_core = None
        if self._from_core is not None:
            self._from_core.close(linger=0)
            self._from_core = None
            (self._folder / from_core_socket(self.front, self._generation)).unlink(missing_ok=True)

    async def _listen(self, socket: "zmq.asyncio.Socket") -> None:
        owner = self._owner
        assert owner is not None
        try:
            while not socket.closed:
                data = await socket.recv()
                self._num_received += 1
                owner.take(self._codec.decode_from_core(data))
        except zmq.ZMQError:
            return  # closed
        except Exception as error:  # noqa: BLE001 - whatever it is, those who wait must be told
            _LOG.exception("the front end cannot read the core's outputs")
            self._die(owner, EngineDead(f"the core's outputs cannot be read: {error}"))


async def _read_notice(reader: asyncio.StreamReader) -> HostNotice:
    """The next line of a host.

    Raises:
        EngineDead: It has ended, or said something else.
    """
    try:
        line = await reader.readline()
        if line.endswith(b"\n"):
            return msgspec.json.decode(line, type=HostNotice)
    except (OSError, ValueError, msgspec.MsgspecError) as error:
        raise EngineDead(f"the host of the engine core is lost: {error}") from error
    raise EngineDead("the host of the engine core is gone")
