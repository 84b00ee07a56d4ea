"""A worker's own process: one front end of an engine that the supervisor hosts.

Started as `python -m llm_stack_server.supervisor.worker_process`, with a `Boot` as a line of JSON on standard
input, which then stays open for the life of the supervisor: its end tells that the supervisor is gone,
however it went, and this process ends too.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import os
import socket
import sys
import threading
from pathlib import Path

import msgspec

from llm_stack_server.console import say
from llm_stack_server.context import Shared
from llm_stack_server.engine_port import Engine
from llm_stack_server.errors import StartupError
from llm_stack_server.event_loop import loop_factory
from llm_stack_server.serving import Serving
from llm_stack_server.supervisor.channel import Channel
from llm_stack_server.supervisor.messages import (
    Answer,
    Boot,
    CancelResponse,
    Drain,
    Measure,
    Measured,
    Question,
    Reload,
    Told,
)
from llm_stack_server.supervisor.messages import Serving as ServingNow
from llm_stack_server.supervisor.remote import RemoteLedger, RemoteMetrics, RemoteShelf
from llm_stack_server.supervisor.supervisor import CANNOT_START
from llm_stack_server.tls import Tls

_MEASURE_INTERVAL_S = 1.0


class ConnectedEngine:
    """An engine that the supervisor hosts. Implements `serving.EngineSource`."""

    def __init__(self, boot: Boot, channel: Channel) -> None:
        self._boot = boot
        self._channel = channel

    @property
    def model(self) -> str:
        """What it runs."""
        return self._boot.options.model

    async def start(self) -> Engine:
        """Become a front end of it."""
        from llm_engine import connect_engine

        name = f"front-{self._boot.number}"
        return await connect_engine(Path(self._boot.folder), self._boot.options, name=name)

    def serving(self, names: tuple[str, ...], engine: Engine) -> None:
        """Tell the supervisor."""
        self._channel.tell(ServingNow(names, engine.max_model_len))


class Worker:
    """One front end and its channel to the supervisor. Implements `channel.ChannelOwner`."""

    def __init__(self, serving: Serving) -> None:
        self._serving = serving

    def hear(self, message: Told) -> None:
        """Do what the supervisor says."""
        match message:
            case Drain():
                self._serving.stop()
            case Reload():
                self._serving.reload()

    async def answer(self, question: Question) -> Answer:
        """Answer what the supervisor asks."""
        match question:
            case Measure():
                return self.measured()
            case CancelResponse():
                await self._serving.context.background.cancel(question.response_id)
        return None

    def measured(self) -> Measured:
        """This front end's metrics as they are now."""
        return Measured(self._serving.context.metrics.families())


async def run(boot: Boot, listener: socket.socket, control: socket.socket) -> int:
    """Serve; the exit code."""
    settings = boot.settings.share()
    channel = await Channel.over(control)
    tls = None
    if settings.tls_cert is not None:
        tls = Tls(settings.tls_cert, settings.tls_key, settings.tls_client_ca)
    shared = Shared(
        ledger=RemoteLedger(
            channel,
            counts_requests=settings.requests_per_minute > 0,
            counts_tokens=settings.tokens_per_minute > 0,
            has_places=settings.max_concurrent_requests > 0 or settings.max_requests_per_key > 0,
        ),
        responses=RemoteShelf(channel),
        metrics=RemoteMetrics(channel),
        started=boot.started,
    )
    serving = Serving(
        settings,
        listener,
        ConnectedEngine(boot, channel),
        tls=tls,
        shared=shared,
        say=functools.partial(say, who=f"llm-stack front end {boot.number}"),
    )
    worker = Worker(serving)
    tasks = [asyncio.create_task(channel.run(worker)), asyncio.create_task(_measure(worker, channel))]
    try:
        return await serving.run()
    finally:
        channel.tell(worker.measured())  # the last of it
        await channel.flush()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _measure(worker: Worker, channel: Channel) -> None:
    while True:
        channel.tell(worker.measured())
        await asyncio.sleep(_MEASURE_INTERVAL_S)


def main() -> int:
    """Run a worker; returns the exit code."""
    boot = msgspec.json.decode(sys.stdin.buffer.readline(), type=Boot)
    threading.Thread(target=_exit_with_supervisor, daemon=True, name="supervisor-watch").start()
    logging.basicConfig(
        stream=sys.stderr,
        level=boot.settings.log_level.upper(),
        format=f"%(asctime)s %(levelname)s front end {boot.number} %(name)s: %(message)s",
    )
    listener, control = socket.socket(fileno=boot.listener), socket.socket(fileno=boot.control)
    control.setblocking(False)
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        try:
            return runner.run(run(boot, listener, control))
        except StartupError as error:
            say(f"error: {error}")
            return CANNOT_START


def _exit_with_supervisor() -> None:
    """Wait for the end of standard input, then end this process, whatever it is doing.

    Reads the descriptor: a thread inside the buffered reader would hold its lock when the interpreter ends.
    """
    while os.read(sys.stdin.fileno(), 4096):
        pass
    os._exit(1)


if __name__ == "__main__":
    sys.exit(main())
