"""Keeps several front ends and one engine running, and ends them together. Parses nothing of clients.

The supervisor holds the listening socket and hosts the engine. A worker that dies is started again; the
engine and the other workers go on meanwhile.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from llm_engine import CoreHost, CoreState, EngineOptions, RestartPolicy
from llm_engine.errors import EngineError

from llm_stack_server.console import say
from llm_stack_server.event_loop import either
from llm_stack_server.keys import KeyRing
from llm_stack_server.response_store import response_store_of
from llm_stack_server.settings import ServerSettings
from llm_stack_server.supervisor.channel import Channel
from llm_stack_server.supervisor.messages import Boot, Drain, Reload, Serving
from llm_stack_server.supervisor.shared_state import Desk, SharedState
from llm_stack_server.supervisor.worker_child import WORKER_COMMAND, WorkerChild
from llm_stack_server.usage_ledger import ledger_of

CANNOT_START = 78  # a worker's exit code: an option is wrong, and would be the next time
_HEALTH_INTERVAL_S = 0.5
_DEATH_GRACE_S = 5.0  # workers answer 503 for so long after the engine died
_LATE_S = 10.0  # for workers to end after the time of the drain
_END_S = 3.0  # after a second signal
_LOOK_S = 0.5  # between two looks at a worker


class EngineHost(Protocol):
    """What the supervisor needs of `llm_engine.CoreHost`."""

    @property
    def folder(self) -> Path:
        """Where workers connect."""
        ...

    @property
    def state(self) -> CoreState:
        """Where the engine is in its life."""
        ...

    async def begin(self) -> None:
        """Start it."""
        ...

    async def wait_ready(self) -> None:
        """Wait until it is ready; raises `llm_engine.errors.StartupError`."""
        ...

    async def wait_dead(self) -> CoreState:
        """Wait until it is gone for good."""
        ...

    async def shutdown(self) -> None:
        """End it."""
        ...


class Supervisor:
    """One run of a server with several front ends.

    Args:
        settings: The server's options.
        options: The engine's.
        listener: The socket that all workers accept at.
        url: What it is called in messages.
        host: Of the engine; by default one is made by the options.
        command: What a worker runs.
        hang_s: A worker that gives no sign of life for so long is killed, which counts as a death.
        first_sign_s: The same until its first one: it may have much to import.

    Raises:
        StartupError: A key is wrong.
    """

    def __init__(
        self,
        settings: ServerSettings,
        options: EngineOptions,
        listener: socket.socket,
        url: str,
        *,
        host: EngineHost | None = None,
        command: Sequence[str] = WORKER_COMMAND,
        hang_s: float = 120.0,
        first_sign_s: float = 300.0,
    ) -> None:
        KeyRing(settings.api_key, settings.api_key_file)  # so that a wrong one is told before anything starts
        self._settings = settings
        self._options = options
        self._listener = listener
        self._url = url
        self._command = command
        self._hang_s = hang_s
        self._first_sign_s = first_sign_s
        restart = RestartPolicy(max_deaths=settings.max_core_deaths)
        self._host: EngineHost = CoreHost(options, restart) if host is None else host
        self._policy = RestartPolicy(max_deaths=settings.max_worker_deaths)
        self._state = SharedState(ledger_of(settings), response_store_of(settings))
        self._channels: dict[int, Channel] = {}
        self._serving: dict[int, Serving] = {}
        self._said_ready = False
        self._deaths: deque[float] = deque()
        self._started = int(time.time())
        self._stop = asyncio.Event()
        self._stop_now = asyncio.Event()
        self._gave_up = asyncio.Event()
        self._ending = False

    async def run(self) -> int:
        """Serve; the exit code: 0 after a drain, 1 where the engine or the workers could not be kept."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.stop)
        loop.add_signal_handler(signal.SIGHUP, self.reload)
        await self._host.begin()
        say(
            f"listening on {self._url} with {self._settings.api_workers} front ends, "
            f"loading {self._options.model}"
        )
        keepers = [
            asyncio.create_task(self._keep(number), name=f"worker-{number}")
            for number in range(self._settings.api_workers)
        ]
        try:
            return await self._until_end(keepers)
        finally:
            self._ending = True
            for keeper in keepers:
                keeper.cancel()
            await asyncio.gather(*keepers, return_exceptions=True)
            await self._host.shutdown()

    async def _until_end(self, keepers: list[asyncio.Task[None]]) -> int:
        ends = {
            asyncio.create_task(work, name=name)
            for name, work in (
                ("engine", self._watch_engine()),
                ("stop", self._stop.wait()),
                ("gave up", self._gave_up.wait()),
            )
        }
        done, others = await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        for task in others:
            task.cancel()
        names = {task.get_name() for task in done}
        if "engine" in names:
            await either(asyncio.sleep(_DEATH_GRACE_S if self._said_ready else 0.0), self._stop.wait())
            return 1
        await self._drain(keepers)
        return 1 if "gave up" in names else 0

    # Signals

    def stop(self) -> None:
        """Drain all workers; called again: end now."""
        (self._stop_now if self._stop.is_set() else self._stop).set()

    def reload(self) -> None:
        """Have all workers read keys and certificates again."""
        for channel in self._channels.values():
            channel.tell(Reload())

    async def _drain(self, keepers: list[asyncio.Task[None]]) -> None:
        """Have all workers finish, and wait for their ends as long as they may take."""
        self._ending = True
        limit_s = self._settings.drain_timeout_s
        say(f"draining {len(self._channels)} front ends, at most {limit_s:g} s")
        for channel in self._channels.values():
            channel.tell(Drain())
        all_ended = asyncio.gather(*keepers, return_exceptions=True)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(limit_s + _LATE_S):
                if await either(_wait(all_ended), self._stop_now.wait()):
                    return
        for channel in self._channels.values():
            channel.tell(Drain())
        await asyncio.wait({all_ended}, timeout=_END_S)

    # The engine

    async def _watch_engine(self) -> None:
        """Return when the engine is gone for good, after telling so; meanwhile tell of its restarts."""
        host = self._host
        try:
            await host.wait_ready()
        except EngineError as error:
            say(f"error: {error}")
            return
        before = host.state
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_HEALTH_INTERVAL_S):
                    await host.wait_dead()
            now = host.state
            if now.phase == "dead":
                say(f"error: {now.reason}; the engine is gone: answering 503 for a moment, then exiting")
                return
            if now.deaths > before.deaths:
                say(f"error: {now.reason}; starting it again, its requests wait")
            if now.phase == "running" and now.generation > before.generation:
                say("the engine runs again; its requests go on")
            before = now

    # Workers

    async def _keep(self, number: int) -> None:
        """Run one worker after another until the server ends."""
        while True:
            how, code = await self._run_worker(number)
            if self._ending or self._host.state.phase == "dead":
                return
            now_s = time.monotonic()
            self._deaths.append(now_s)
            while self._deaths[0] < now_s - self._policy.window_s:
                self._deaths.popleft()
            if code == CANNOT_START and not self._said_ready:
                self._gave_up.set()  # it has told why
                return
            if len(self._deaths) >= self._policy.max_deaths:
                say(f"error: front end {number} {how}; {len(self._deaths)} have died: giving up")
                self._gave_up.set()
                return
            pause_s = self._policy.backoff_s(len(self._deaths))
            say(f"error: front end {number} {how}; it is started again in {pause_s:g} s")
            await asyncio.sleep(pause_s)

    async def _run_worker(self, number: int) -> tuple[str, int]:
        """Start a worker and serve it until its end; returns how it ended, and the code."""
        child = WorkerChild(self._command, lambda control: self._boot(number, control), self._listener)
        try:
            channel = await Channel.over(child.control)
            self._channels[number] = channel
            if self._ending:  # the drain was told before
                channel.tell(Drain())
            watched = _Watched(self._first_sign_s)
            desk = Desk(
                self._state,
                number,
                channel,
                lambda serving: self._note_serving(number, serving),
                lambda: watched.sign(self._hang_s),
            )
            served = asyncio.create_task(desk.serve())
            try:
                while not child.exited.done():
                    await asyncio.wait({child.exited}, timeout=_LOOK_S)
                    if not child.exited.done() and watched.is_lost():
                        say(f"error: front end {number} gives no sign of life: it is ended")
                        child.kill()
                        await asyncio.wait({child.exited})
            finally:
                self._channels.pop(number, None)
                channel.close()
                served.cancel()
                await asyncio.gather(served, return_exceptions=True)
            return child.death(), child.exited.result()
        finally:
            child.close()

    def _boot(self, number: int, control: int) -> Boot:
        return Boot(
            number=number,
            listener=self._listener.fileno(),
            control=control,
            folder=str(self._host.folder),
            started=self._started,
            settings=self._settings,
            options=self._options,
        )

    def _note_serving(self, number: int, serving: Serving) -> None:
        self._serving[number] = serving
        if not self._said_ready and len(self._serving) == self._settings.api_workers:
            self._said_ready = True
            names = ", ".join(serving.model_names)
            say(f"ready: {names} on {self._url}, context of {serving.max_model_len} tokens")


class _Watched:
    """Whether a worker gives signs of life. Counts our looks, so that a pause of the machine is no death."""

    def __init__(self, first_s: float) -> None:
        self._left_s = first_s

    def sign(self, next_s: float) -> None:
        """It has given one; the next is due in so long."""
        self._left_s = next_s

    def is_lost(self) -> bool:
        """Another look, each `_LOOK_S`: whether the time is over."""
        self._left_s -= _LOOK_S
        return self._left_s <= 0


async def _wait(future: asyncio.Future[list[BaseException | None]]) -> None:
    await asyncio.shield(future)
