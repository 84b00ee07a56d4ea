"""``llm-stack chat``: a conversation in the terminal, or one question a line through a pipe."""

from __future__ import annotations

import argparse
import asyncio
import sys
from contextlib import AsyncExitStack
from typing import Any

from llm_engine.errors import InvalidRequest
from llm_engine.sampling_params import SamplingParams

from llm_stack_server.cli import session
from llm_stack_server.engine_port import Engine
from llm_stack_server.errors import StartupError

_HINT = "Type a message. /reset begins anew, /exit ends, Ctrl-C stops an answer.\n"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags."""
    parser.add_argument("--system", metavar="TEXT", help="a system message to begin with")
    session.add_arguments(parser)


def run(parsed: argparse.Namespace) -> int:
    """Check the options, load the model, talk."""
    params = session.sampling_params(parsed)
    options = session.engine_options(parsed)
    stack = AsyncExitStack()
    # One runner for the whole conversation; each answer is a run of its own, so Ctrl-C ends it alone.
    with asyncio.Runner() as runner:
        engine = runner.run(stack.enter_async_context(session.open_engine(options)))
        try:
            if engine.tokenizer.chat_template is None:
                raise StartupError("model: it has no chat template; use 'llm-stack generate --raw'")
            Conversation(runner, engine, params, parsed.system).loop()
        finally:
            runner.run(stack.aclose())
    return 0


class Conversation:
    """Turns so far, and the loop that adds to them."""

    def __init__(
        self, runner: asyncio.Runner, engine: Engine, params: SamplingParams, system: str | None
    ) -> None:
        self._runner = runner
        self._engine = engine
        self._params = params
        self._opening = [] if system is None else [{"role": "system", "content": system}]
        self._messages: list[dict[str, Any]] = list(self._opening)
        self._interactive = sys.stdin.isatty()

    def loop(self) -> None:
        """Read and answer until /exit or the end of input."""
        if self._interactive:
            sys.stderr.write(_HINT)
        while (line := self._read()) is not None:
            match line.strip():
                case "":
                    continue
                case "/exit":
                    return
                case "/reset":
                    self._messages = list(self._opening)
                case text:
                    self._turn(text)

    def _read(self) -> str | None:
        """The next line; None at the end of input or on Ctrl-C at the prompt."""
        if not self._interactive:
            return sys.stdin.readline() or None
        try:
            return input("> ")
        except (EOFError, KeyboardInterrupt):
            sys.stderr.write("\n")
            return None

    def _turn(self, text: str) -> None:
        self._messages.append({"role": "user", "content": text})
        pieces: list[str] = []
        try:
            self._runner.run(self._answer(pieces))
        except KeyboardInterrupt:
            sys.stderr.write("\n[stopped]\n")
        except InvalidRequest as error:
            if not self._interactive:
                raise
            # Mostly a conversation that outgrew the context: say so, keep what was said before.
            sys.stderr.write(f"llm-stack: {error}. /reset begins anew.\n")
            self._messages.pop()
            return
        sys.stdout.write("\n")
        sys.stdout.flush()
        self._messages.append({"role": "assistant", "content": "".join(pieces)})

    async def _answer(self, pieces: list[str]) -> None:
        tokens = await session.encode_chat(self._engine, self._messages)
        async for piece in session.stream_text(self._engine, tokens, self._params):
            pieces.append(piece)
            sys.stdout.write(piece)
            sys.stdout.flush()
