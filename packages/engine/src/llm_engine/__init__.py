"""Owns the engine: `LLM`, `AsyncLLM` and the core that runs them; knows nothing of HTTP."""

from typing import TYPE_CHECKING

from llm_engine.start_profile import StartProfile  # isort: skip - first: it notes when imports began
from llm_engine.errors import (
    ContextLengthExceeded,
    EngineBusy,
    EngineDead,
    EngineError,
    EngineRestarting,
    InvalidOption,
    InvalidRequest,
    RequestFailed,
    StartupError,
    UnsupportedTask,
)
from llm_engine.options import EngineOptions
from llm_engine.outputs import CompletionOutput, RequestDelta, RequestOutput, TokenLogprobs
from llm_engine.pooling_outputs import ClassificationOutput, EmbeddingOutput, RewardOutput, ScoreOutput
from llm_engine.sampling_params import SamplingParams
from llm_engine.stats import EngineStats

if TYPE_CHECKING:
    from llm_engine.async_llm import AsyncLLM
    from llm_engine.async_pooling import AsyncPoolingLLM
    from llm_engine.async_start import connect_engine, start_engine
    from llm_engine.core.core_host import CoreHost
    from llm_engine.core.core_state import CoreState, RestartPolicy
    from llm_engine.llm import LLM
    from llm_engine.prompts import TokensPrompt

__all__ = [
    "LLM",
    "AsyncLLM",
    "AsyncPoolingLLM",
    "ClassificationOutput",
    "CompletionOutput",
    "ContextLengthExceeded",
    "CoreHost",
    "CoreState",
    "EmbeddingOutput",
    "EngineBusy",
    "EngineDead",
    "EngineError",
    "EngineOptions",
    "EngineRestarting",
    "EngineStats",
    "InvalidOption",
    "InvalidRequest",
    "RequestDelta",
    "RequestFailed",
    "RequestOutput",
    "RestartPolicy",
    "RewardOutput",
    "SamplingParams",
    "ScoreOutput",
    "StartProfile",
    "StartupError",
    "TokenLogprobs",
    "TokensPrompt",
    "UnsupportedTask",
    "connect_engine",
    "start_engine",
]

_LAZY = {
    "LLM": "llm_engine.llm",
    "AsyncLLM": "llm_engine.async_llm",
    "AsyncPoolingLLM": "llm_engine.async_pooling",
    "TokensPrompt": "llm_engine.prompts",
    "CoreHost": "llm_engine.core.core_host",
    "CoreState": "llm_engine.core.core_state",
    "RestartPolicy": "llm_engine.core.core_state",
    "connect_engine": "llm_engine.async_start",
    "start_engine": "llm_engine.async_start",
}


def __getattr__(name: str) -> object:
    # Loaded on first use: torch takes seconds, and a command line that parses options must not wait for it.
    if name in _LAZY:
        from importlib import import_module

        value: object = getattr(import_module(_LAZY[name]), name)
        return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
