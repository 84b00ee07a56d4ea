"""Owns the choice of the asynchronous front end that goes with a model; knows nothing of either's work."""

from llm_engine.async_llm import AsyncLLM
from llm_engine.async_pooling import AsyncPoolingLLM
from llm_engine.core.connected import connect_core
from llm_engine.core.messages import PoolingReady
from llm_engine.options import EngineOptions


async def start_engine(options: EngineOptions) -> AsyncLLM | AsyncPoolingLLM:
    """Start the core process of a model: one that generates text, or one that gives vectors or scores.

    Raises:
        StartupError: The core could not start; one line says why.
    """
    core = await connect_core(options)
    if isinstance(core.ready, PoolingReady):
        return AsyncPoolingLLM(options, core, core.ready)
    return AsyncLLM.over(options, core, core.ready)
