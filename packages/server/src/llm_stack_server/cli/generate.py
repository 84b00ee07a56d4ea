"""``llm-stack generate``: one prompt, its answer on stdout as it comes, all else on stderr."""

from __future__ import annotations

import argparse
import asyncio
import sys

from llm_engine.options import EngineOptions
from llm_engine.sampling_params import SamplingParams

from llm_stack_server.cli import session
from llm_stack_server.cli.answer_stats import AnswerStats
from llm_stack_server.errors import StartupError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the prompt and all flags."""
    parser.add_argument("prompt", help="the prompt; '-' reads it from stdin")
    parser.add_argument(
        "--raw", action="store_true", help="give the prompt to the model as it is, without chat template"
    )
    parser.add_argument(
        "--stats", action="store_true", help="tell on stderr how long model, first token and tokens took"
    )
    session.add_arguments(parser)


def run(parsed: argparse.Namespace) -> int:
    """Check the options, load the model, print the answer."""
    stats = AnswerStats() if parsed.stats else None
    params = session.sampling_params(parsed)
    options = session.engine_options(parsed)
    prompt = sys.stdin.read() if parsed.prompt == "-" else parsed.prompt
    if not prompt:
        raise StartupError("prompt: must not be empty")
    asyncio.run(_generate(options, params, prompt, stats, raw=parsed.raw))
    if stats is not None:
        sys.stderr.write(f"{stats.line()}\n")
    return 0


async def _generate(
    options: EngineOptions, params: SamplingParams, prompt: str, stats: AnswerStats | None, *, raw: bool
) -> None:
    async with session.open_engine(options) as engine:
        tokens: str | list[int] = prompt
        if not raw and engine.tokenizer.chat_template is not None:
            tokens = await session.encode_chat(engine, [{"role": "user", "content": prompt}])
        async for text in session.stream_text(engine, tokens, params, stats):
            sys.stdout.write(text)
            sys.stdout.flush()
        sys.stdout.write("\n")
