"""An engine for one command: opens it, renders prompts, streams text. Knows nothing of terminals."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from llm_engine.options import EngineOptions
from llm_engine.sampling_params import SamplingParams

from llm_stack_server.cli.answer_stats import AnswerStats
from llm_stack_server.cli.config_file import add_config_flag, read_config
from llm_stack_server.cli.flags import add_flags, from_flags
from llm_stack_server.engine_port import Engine

DEFAULT_MODEL = "smollm2"
_SEED = "request_seed"  # the engine has a seed too, which a file may set
_SAMPLING_FLAGS = ("max_tokens", "temperature", "top_p", "top_k", "min_p", "repetition_penalty", "seed")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare model, sampling and engine flags."""
    parser.add_argument(
        "--model", default=argparse.SUPPRESS, help=f"alias, folder or .gguf file (default: {DEFAULT_MODEL})"
    )
    add_config_flag(parser)
    sampling = parser.add_argument_group("sampling")
    sampling.add_argument(
        "--max-tokens", type=int, metavar="INT", help="tokens at most (default: what the context holds)"
    )
    sampling.add_argument(
        "--temperature", type=float, default=0.0, metavar="FLOAT", help="0 is greedy (default: 0)"
    )
    sampling.add_argument("--top-p", type=float, metavar="FLOAT", help="keep this probability mass")
    sampling.add_argument("--top-k", type=int, metavar="INT", help="keep this many tokens")
    sampling.add_argument(
        "--min-p", type=float, metavar="FLOAT", help="drop tokens below this share of the best"
    )
    sampling.add_argument("--repetition-penalty", type=float, metavar="FLOAT", help="1 is off")
    sampling.add_argument("--seed", dest=_SEED, type=int, metavar="INT", help="of the draws")
    add_flags(parser, EngineOptions, skip={"model", "seed"})


def engine_options(parsed: argparse.Namespace) -> EngineOptions:
    """The engine's options from the flags and the file that they name."""
    read_config(parsed)
    if "model" not in vars(parsed):
        parsed.model = DEFAULT_MODEL
    return from_flags(EngineOptions, parsed)


def sampling_params(parsed: argparse.Namespace) -> SamplingParams:
    """The sampling parameters from the flags.

    Raises:
        llm_engine.errors.InvalidRequest: a value is out of range.
    """
    given = {name: getattr(parsed, _SEED if name == "seed" else name) for name in _SAMPLING_FLAGS}
    return SamplingParams(**{name: value for name, value in given.items() if value is not None})


@asynccontextmanager
async def open_engine(options: EngineOptions) -> AsyncIterator[Engine]:
    """Start the engine; it ends with the block."""
    from llm_engine import AsyncLLM

    engine = await AsyncLLM.start(options)
    try:
        yield engine
    finally:
        await engine.shutdown()


async def encode_chat(engine: Engine, messages: list[dict[str, Any]]) -> list[int]:
    """Token ids of a conversation, ready for the model's next turn."""
    codec = engine.tokenizer

    def render() -> list[int]:
        return codec.encode(codec.render_chat(messages), add_special_tokens=False)

    return await asyncio.to_thread(render)


async def stream_text(
    engine: Engine, prompt: str | list[int], params: SamplingParams, stats: AnswerStats | None = None
) -> AsyncIterator[str]:
    """The answer's text, piece by piece."""
    if stats is not None:
        stats.asked()
    deltas = engine.generate(prompt, params)
    try:
        async for delta in deltas:
            if stats is not None:
                stats.note(delta)
            if delta.text:
                yield delta.text
    finally:
        if hasattr(deltas, "aclose"):
            await deltas.aclose()
