"""Owns a core's life: its start, its restarts, its end, and who is told of them; knows nothing of requests.

The host is the parent of the core's process and lives in the event loop of a process that does nothing risky.
Front ends, of any process of the same user, connect to a socket in its folder: over it they learn of each
change, and its end tells the host that a front end is gone, however it went.
"""

import asyncio
import contextlib
import logging
import shutil
import tempfile
import time
from collections import deque
from dataclasses import dataclass
from pathlib import Path

import msgspec

from llm_engine.core.core_child import CoreChild
from llm_engine.core.core_state import HOST_SOCKET, CoreState, FrontHello, HostNotice, RestartPolicy
from llm_engine.core.messages import (
    CoreFailed,
    CoreInfo,
    FrontGone,
    ModelFound,
    Ping,
    Pong,
    PoolingReady,
    Shutdown,
)
from llm_engine.core.suspicion import DeathLedger
from llm_engine.errors import EngineDead, EngineError, StartupError
from llm_engine.options import EngineOptions

_LOG = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class _Front:
    """A front end that is connected."""

    number: int
    name: str
    writer: asyncio.StreamWriter


class CoreHost:
    """Runs a core and starts it again when it dies. All methods belong to one event loop.

    ```python
    host = CoreHost(EngineOptions(model="smollm2"))
    await host.start()
    ...                           # elsewhere: AsyncLLM.connect(host.folder, options)
    state = await host.wait_dead()
    ```

    Args:
        options: What to run.
        policy: When to start it again.
        folder: Where the sockets go, for this user alone; made anew when None. Its path must be short: a
            socket's has room for about 100 characters.

    Attributes:
        folder: Where the sockets are; what a front end connects to.
    """

    def __init__(
        self, options: EngineOptions, policy: RestartPolicy | None = None, *, folder: Path | None = None
    ) -> None:
        self._options = options
        self._policy = RestartPolicy() if policy is None else policy
        # mkdtemp makes it 0700: only this user may enter.
        self.folder = Path(tempfile.mkdtemp(prefix="llm-stack-")) if folder is None else folder
        self._notice = HostNotice(front=0, state=CoreState(phase="starting"))
        self._fronts: dict[int, _Front] = {}
        self._num_fronts = 0
        self._ledger = DeathLedger(self._policy.quarantine_after)
        self._recent_deaths: deque[float] = deque()
        self._child: CoreChild | None = None
        self._answered_s = time.monotonic()
        self._hung = ""
        self._ready_once = asyncio.Event()
        self._dead = asyncio.Event()
        self._server: asyncio.Server | None = None
        self._keeper: asyncio.Task[None] | None = None
        self._closed = False

    @property
    def state(self) -> CoreState:
        """Where the core is in its life."""
        return self._notice.state

    @property
    def last_heartbeat_age_s(self) -> float:
        """Seconds since the core's loop gave a sign of life."""
        return time.monotonic() - self._answered_s

    @property
    def num_front_ends(self) -> int:
        """Front ends that are connected."""
        return len(self._fronts)

    async def begin(self) -> None:
        """Start the core's process; front ends may connect from now on, before it is ready."""
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        socket = self.folder / HOST_SOCKET
        socket.unlink(missing_ok=True)
        self._server = await asyncio.start_unix_server(self._serve_front, socket)
        self._keeper = asyncio.create_task(self._keep(), name="core-keeper")

    async def start(self) -> None:
        """Start the core and wait until it is ready.

        Raises:
            StartupError: It could not start; nothing is left running.
        """
        await self.begin()
        await self.wait_ready()

    async def wait_ready(self) -> None:
        """Wait until the first core is ready; `begin` came before.

        Raises:
            StartupError: It could not start; nothing is left running.
        """
        waiting = [asyncio.ensure_future(one.wait()) for one in (self._ready_once, self._dead)]
        try:
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        except BaseException:
            await self.shutdown()
            raise
        finally:
            for one in waiting:
                one.cancel()
        if not self._ready_once.is_set():
            failure = self._notice.failure or ("EngineDead", self.state.reason)
            await self.shutdown()
            raise StartupError(*failure)

    async def wait_dead(self) -> CoreState:
        """Wait until the host has given up, or was shut down; returns the last state."""
        await self._dead.wait()
        return self.state

    async def shutdown(self, timeout_s: float = 5.0) -> None:
        """End the core, by force after the timeout, and remove the folder. Safe to call twice."""
        if self._closed:
            return
        self._closed = True
        child = self._child
        try:
            if child is not None and child.is_alive:
                child.send(Shutdown())
                await child.wait_exit(timeout_s)
        finally:
            if self._keeper is not None:
                self._keeper.cancel()
                await asyncio.wait({self._keeper})
            if child is not None:
                child.kill()
            self._end("the engine was shut down")
            await self._close_server()
            shutil.rmtree(self.folder, ignore_errors=True)

    # The core's life

    async def _keep(self) -> None:
        """Run core after core until one is not to be followed by another."""
        try:
            while await self._run_once():
                pass
        except asyncio.CancelledError:
            raise
        except Exception as error:  # noqa: BLE001 - whatever it is, those who wait must be told
            _LOG.exception("the host of the core failed")
            self._end(f"the host of the core failed: {error}")

    async def _run_once(self) -> bool:
        """Start a core and wait for its death; returns whether to start another."""
        generation = self.state.generation + 1
        child = CoreChild(self.folder, generation, self._options, self._ledger.orders())
        self._child = child
        self._hung = ""
        self._set_state(
            msgspec.structs.replace(self.state, generation=generation, pid=child.pid),
        )
        try:
            reason = await self._listen(child)
        finally:
            entry = child.close()
        if self._closed:
            return False
        was_ready = self._ready_once.is_set()
        self._count_death(reason)
        ended = self._ledger.note_death(entry)
        for request_id, why in ended.items():
            _LOG.warning("request %s is %s", request_id, why)
        if not was_ready or len(self._recent_deaths) >= self._policy.max_deaths:
            self._end(reason)
            return False
        pause_s = self._policy.backoff_s(len(self._recent_deaths))
        _LOG.warning("%s; it is started again in %.1f s", reason, pause_s)
        self._set_state(
            CoreState(
                phase="restarting",
                generation=generation,
                attempt=len(self._recent_deaths),
                deaths=self.state.deaths,
                reason=reason,
            ),
            ended={**self._notice.ended, **ended},
        )
        await asyncio.sleep(pause_s)
        return True

    async def _listen(self, child: CoreChild) -> str:
        """Take in what a core says until it has ended; returns why."""
        failure = ""
        heartbeat: asyncio.Task[None] | None = None
        try:
            while True:
                message = await child.receive()
                match message:
                    case ModelFound():
                        self._notice = msgspec.structs.replace(
                            self._notice, found=True, tokenizer_path=message.tokenizer_path
                        )
                        self._publish()
                    case CoreInfo() | PoolingReady():
                        heartbeat = asyncio.create_task(self._heartbeat(child), name="core-heartbeat")
                        self._come_up(child, message)
                    case CoreFailed():
                        failure = f"the engine core failed: {message.reason}: {message.message}"
                        if not self._ready_once.is_set():
                            self._notice = msgspec.structs.replace(
                                self._notice, failure=(message.reason, message.message)
                            )
                    case Pong():
                        self._answered_s = time.monotonic()
        except EngineDead as error:
            return self._hung or failure or str(error)
        except EngineError as error:
            return str(error)
        finally:
            if heartbeat is not None:
                heartbeat.cancel()

    def _come_up(self, child: CoreChild, ready: CoreInfo | PoolingReady) -> None:
        self._answered_s = time.monotonic()
        self._ready_once.set()
        path = ready.tokenizer_path
        self._notice = msgspec.structs.replace(self._notice, found=True, tokenizer_path=path, ready=ready)
        state = self.state
        self._set_state(
            CoreState(
                phase="running",
                generation=state.generation,
                deaths=state.deaths,
                reason=state.reason,
                pid=child.pid,
            )
        )

    async def _heartbeat(self, child: CoreChild) -> None:
        """Ask the core's loop for signs of life; end a core that gives none for too long."""
        limit_s = self._policy.hang_timeout_s
        token = 0
        while True:
            child.send(Ping(token))
            token += 1
            await asyncio.sleep(self._policy.heartbeat_s)
            if limit_s is not None and self.last_heartbeat_age_s > limit_s:
                self._hung = (
                    f"the engine core (pid {child.pid}) hung: its loop did not turn for {limit_s:g} s"
                )
                child.kill()
                return

    def _count_death(self, reason: str) -> None:
        now_s = time.monotonic()
        self._recent_deaths.append(now_s)
        while self._recent_deaths[0] < now_s - self._policy.window_s:
            self._recent_deaths.popleft()
        state = self.state
        self._notice = msgspec.structs.replace(
            self._notice, state=msgspec.structs.replace(state, deaths=state.deaths + 1, reason=reason)
        )

    def _end(self, reason: str) -> None:
        """No core follows this one."""
        if self.state.phase != "dead":
            state = self.state
            dead = CoreState(phase="dead", generation=state.generation, deaths=state.deaths, reason=reason)
            self._set_state(dead)
        self._dead.set()

    def _set_state(self, state: CoreState, ended: dict[str, str] | None = None) -> None:
        notice = msgspec.structs.replace(self._notice, state=state)
        self._notice = notice if ended is None else msgspec.structs.replace(notice, ended=ended)
        self._publish()

    # Front ends

    async def _serve_front(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        front: _Front | None = None
        try:
            line = await reader.readline()
            hello = msgspec.json.decode(line, type=FrontHello)
            for other in [one for one in self._fronts.values() if one.name == hello.name]:
                self._tell(other, replaced=True)
                self._part_from(other)
            self._num_fronts += 1
            front = _Front(self._num_fronts, hello.name, writer)
            self._fronts[front.number] = front
            self._tell(front)
            while await reader.read(4096):
                pass
        except (msgspec.MsgspecError, OSError, ValueError) as error:
            _LOG.warning("a front end was lost: %s", error)
        finally:
            if front is not None:
                self._part_from(front)
            writer.close()

    def _part_from(self, front: _Front) -> None:
        """A front end has gone: its requests end."""
        if self._fronts.pop(front.number, None) is not None and self._child is not None and not self._closed:
            if self.state.phase == "running":
                self._child.send(FrontGone(front.number))
            front.writer.close()

    def _publish(self) -> None:
        for front in list(self._fronts.values()):
            self._tell(front)

    def _tell(self, front: _Front, *, replaced: bool = False) -> None:
        mine = f"{front.number}."
        notice = msgspec.structs.replace(
            self._notice,
            front=front.number,
            ended={one: why for one, why in self._notice.ended.items() if one.startswith(mine)},
            replaced=replaced,
        )
        with contextlib.suppress(OSError, RuntimeError):
            front.writer.write(msgspec.json.encode(notice) + b"\n")

    async def _close_server(self) -> None:
        if self._server is None:
            return
        self._server.close()
        for front in list(self._fronts.values()):
            front.writer.close()
        self._fronts.clear()
        await asyncio.sleep(0)  # the writers' last lines
