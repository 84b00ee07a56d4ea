"""Owns the way from options to a core process that is ready and says what its model is for."""

import asyncio
from dataclasses import dataclass
from pathlib import Path

from llm_tokenizer import Tokenizer

from llm_engine.core.messages import CoreInfo, ModelFound, PoolingReady
from llm_engine.core.process_client import ProcessClient
from llm_engine.errors import EngineDead, StartupError
from llm_engine.options import EngineOptions
from llm_engine.start_profile import now_s


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectedCore:
    """A core process whose model is loaded.

    Attributes:
        client: The way to it.
        tokenizer: The model's; None: it has none.
        ready: What the core told of its model: one that generates, or one that gives vectors or scores.
        begun_s: When the start began.
    """

    client: ProcessClient
    tokenizer: Tokenizer | None
    ready: CoreInfo | PoolingReady
    begun_s: float


async def connect_core(options: EngineOptions) -> ConnectedCore:
    """Start a core process and wait until its model is loaded.

    Raises:
        StartupError: The core could not start; one line says why.
    """
    begun_s = now_s()
    client = ProcessClient()
    try:
        client.start(options)
        found = await client.receive()
        tokenizer = None
        if isinstance(found, ModelFound) and found.tokenizer_path is not None:
            # Meanwhile the core reads the weights.
            tokenizer = await asyncio.to_thread(_ready_tokenizer, Path(found.tokenizer_path))
        ready = await client.receive()
        if not isinstance(ready, CoreInfo | PoolingReady):
            raise StartupError("ProtocolError", f"the core began with {type(ready).__name__}")
    except EngineDead as error:
        client.kill()
        raise StartupError("EngineDead", str(error)) from error
    except BaseException:
        client.kill()
        raise
    return ConnectedCore(client=client, tokenizer=tokenizer, ready=ready, begun_s=begun_s)


def _ready_tokenizer(path: Path) -> Tokenizer:
    """Load a tokenizer and let it prepare its fast path, so that the first request need not wait for that."""
    tokenizer = Tokenizer.from_file(path)
    tokenizer.encode("ready")
    return tokenizer
