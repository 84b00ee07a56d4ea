"""Owns the choice of the asynchronous front end that goes with a model; knows nothing of either's work."""

from pathlib import Path

from llm_engine.async_llm import AsyncLLM
from llm_engine.async_pooling import AsyncPoolingLLM
from llm_engine.core.connected import ConnectedCore, connect_core, host_core
from llm_engine.core.core_state import RestartPolicy
from llm_engine.core.messages import PoolingReady
from llm_engine.options import EngineOptions


async def start_engine(
    options: EngineOptions, restart: RestartPolicy | None = None
) -> AsyncLLM | AsyncPoolingLLM:
    """Start the core process of a model: one that generates text, or one that gives vectors or scores.

    Args:
        options: What to run.
        restart: When to start the core again where it dies; None: never.

    Raises:
        StartupError: The core could not start; one line says why.
    """
    return _front_end(options, await host_core(options, restart))


async def connect_engine(
    folder: Path, options: EngineOptions, *, name: str = "front"
) -> AsyncLLM | AsyncPoolingLLM:
    """Become a front end of a core that a `CoreHost` runs, see `AsyncLLM.connect`.

    Raises:
        StartupError: No host is there, or its core could not start.
    """
    return _front_end(options, await connect_core(folder, name))


def _front_end(options: EngineOptions, core: ConnectedCore) -> AsyncLLM | AsyncPoolingLLM:
    if isinstance(core.ready, PoolingReady):
        return AsyncPoolingLLM(options, core, core.ready)
    return AsyncLLM.over(options, core, core.ready)
