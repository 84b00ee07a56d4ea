"""Owns the way from options, or a host's folder, to a core that is ready and says what its model is for."""

import asyncio
from dataclasses import dataclass
from pathlib import Path

from llm_tokenizer import Tokenizer

from llm_engine.core.core_host import CoreHost
from llm_engine.core.core_link import CoreLink
from llm_engine.core.core_state import NO_RESTARTS, RestartPolicy
from llm_engine.core.messages import CoreInfo, PoolingReady
from llm_engine.options import EngineOptions
from llm_engine.start_profile import now_s


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectedCore:
    """A core whose model is loaded, and this front end's hold on it.

    Attributes:
        link: The way to it.
        tokenizer: The model's; None: it has none.
        ready: What the core told of its model: one that generates, or one that gives vectors or scores.
        begun_s: When the start began.
        host: Of the core, where it lives in this process; None: in another one.
    """

    link: CoreLink
    tokenizer: Tokenizer | None
    ready: CoreInfo | PoolingReady
    begun_s: float
    host: CoreHost | None = None

    async def close(self) -> None:
        """Part from the core, and end it where it is hosted here."""
        await self.link.close()
        if self.host is not None:
            await self.host.shutdown()


async def host_core(options: EngineOptions, restart: RestartPolicy | None = None) -> ConnectedCore:
    """Start a core that is hosted here, and wait until its model is loaded.

    Args:
        options: What to run.
        restart: When to start it again; None: never.

    Raises:
        StartupError: The core could not start; one line says why.
    """
    begun_s = now_s()
    host = CoreHost(options, NO_RESTARTS if restart is None else restart)
    try:
        await host.begin()
        return await _connect(host.folder, "front", begun_s, host)
    except BaseException:
        await host.shutdown(timeout_s=0.0)
        raise


async def connect_core(folder: Path, name: str) -> ConnectedCore:
    """Connect to a core that somebody else hosts, and wait until its model is loaded.

    Args:
        folder: The host's.
        name: The front end's; one that connects later by the same name takes its place.

    Raises:
        StartupError: No host is there, or its core could not start.
    """
    return await _connect(folder, name, now_s(), None)


async def _connect(folder: Path, name: str, begun_s: float, host: CoreHost | None) -> ConnectedCore:
    link = await CoreLink.open(folder, name)
    try:
        path = await link.tokenizer_path()
        # Meanwhile the core reads the weights.
        tokenizer = None if path is None else await asyncio.to_thread(_ready_tokenizer, Path(path))
        ready = await link.ready()
    except BaseException:
        await link.close()
        raise
    return ConnectedCore(link=link, tokenizer=tokenizer, ready=ready, begun_s=begun_s, host=host)


def _ready_tokenizer(path: Path) -> Tokenizer:
    """Load a tokenizer and let it prepare its fast path, so that the first request need not wait for that."""
    tokenizer = Tokenizer.from_file(path)
    tokenizer.encode("ready")
    return tokenizer
