"""``llm-stack run-batch``: answers a file of requests with a model in this process, without a server.

Each line goes through the application that `serve` runs, so it is checked and answered as over HTTP.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import sys
import time
from collections.abc import AsyncIterator
from dataclasses import fields
from pathlib import Path

from llm_engine.options import EngineOptions

from llm_stack_server.batch.files import InputFile, Ledger, OutputFile
from llm_stack_server.batch.runner import BatchRunner, Counts
from llm_stack_server.cli.config_file import add_config_flag, read_config, require_model
from llm_stack_server.cli.flags import add_flags, from_flags
from llm_stack_server.engine_port import Engine
from llm_stack_server.errors import StartupError
from llm_stack_server.settings import ServerSettings

# The server's options that change answers; the others are of sockets and clients.
_SERVER_FLAGS = frozenset(
    {"served_model_name", "output_format", "any_dimensions", "max_body_bytes", "strict"}
)
_ENVELOPE_BYTES = 65_536  # what a line may hold besides its body
_TERMINAL_INTERVAL_S = 1.0
_LOG_INTERVAL_S = 10.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the files, the model and the flags of server and engine that matter."""
    parser.add_argument(
        "model",
        nargs="?",
        default=argparse.SUPPRESS,
        help="an alias such as smollm2, a folder with safetensors, or a .gguf file",
    )
    add_config_flag(parser)
    parser.add_argument(
        "-i", "--input", type=Path, required=True, metavar="FILE", help="requests, a JSON object a line"
    )
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="FILE", help="where answers go")
    existing = parser.add_mutually_exclusive_group()
    existing.add_argument(
        "--resume", action="store_true", help="keep the answers that the output holds, run what is left"
    )
    existing.add_argument("--overwrite", action="store_true", help="throw away what the output holds")
    parser.add_argument(
        "--keep-order", action="store_true", help="write answers in the order of the lines, not as they come"
    )
    parser.add_argument(
        "--in-flight",
        type=int,
        metavar="INT",
        help="most requests at a time (default: twice --max-num-seqs)",
    )
    others = {field.name for field in fields(ServerSettings)} - _SERVER_FLAGS
    add_flags(parser, ServerSettings, skip=others)
    add_flags(parser, EngineOptions, skip={"model"})


def run(parsed: argparse.Namespace) -> int:
    """Check options and files, then run all lines: 0 if every one ran, else 1."""
    # What is of sockets and clients has no use here. Answers are in the output: none is kept for a later GET.
    others = {field.name for field in fields(ServerSettings)} - _SERVER_FLAGS
    read_config(parsed, skip=others)
    require_model(parsed)
    settings = from_flags(ServerSettings, parsed, max_stored_responses=0, max_total_body_bytes=0)
    options = from_flags(EngineOptions, parsed)
    in_flight = 2 * options.max_num_seqs if parsed.in_flight is None else parsed.in_flight
    if in_flight < 1:
        raise StartupError(f"in_flight: must be at least 1, got {in_flight}")
    if parsed.output.exists() and parsed.input.exists() and parsed.output.samefile(parsed.input):
        raise StartupError("output: is the input file")
    with contextlib.ExitStack() as stack:
        ledger = stack.enter_context(Ledger())
        source = InputFile(parsed.input, settings.max_body_bytes + _ENVELOPE_BYTES)
        stack.callback(source.close)
        failed_before = 0
        if parsed.resume:
            target, failed_before = OutputFile.resume(parsed.output, ledger)
        else:
            target = OutputFile.create(parsed.output, overwrite=parsed.overwrite)
        stack.callback(target.close)
        batch = _Batch(source, target, ledger, in_flight, keep_order=parsed.keep_order)
        try:
            asyncio.run(batch.run(settings, options))
        except KeyboardInterrupt:
            answered = batch.counts.done + batch.counts.failed
            _say(f"stopped: {answered} lines are answered, --resume runs the others")
            raise
    counts = batch.counts
    earlier = f"; of an earlier run {failed_before} failed" if failed_before else ""
    _say(f"{counts.done} done, {counts.failed} failed, {counts.skipped} skipped{earlier}")
    return 1 if counts.failed or failed_before else 0


@contextlib.asynccontextmanager
async def _open_engine(options: EngineOptions) -> AsyncIterator[Engine]:
    """The engine that goes with the model: one that generates, or one that gives vectors."""
    from llm_engine import start_engine  # heavy: only with good options

    engine = await start_engine(options)
    try:
        yield engine
    finally:
        await engine.shutdown()


class _Batch:
    """One run over open files."""

    def __init__(
        self, source: InputFile, target: OutputFile, ledger: Ledger, in_flight: int, *, keep_order: bool
    ) -> None:
        self.counts = Counts()
        self._source = source
        self._target = target
        self._ledger = ledger
        self._in_flight = in_flight
        self._keep_order = keep_order

    async def run(self, settings: ServerSettings, options: EngineOptions) -> None:
        """Start the engine, run all lines, end the engine."""
        from llm_stack_server.app import create_app  # only with good options: the web stack takes a moment
        from llm_stack_server.batch.in_process import post

        async with _open_engine(options) as engine:
            app = create_app(settings, engine)
            runner = BatchRunner(
                lambda url, body: post(app, url, body),
                self._target.write,
                self._ledger,
                self.counts,
                in_flight=self._in_flight,
                keep_order=self._keep_order,
            )
            progress = asyncio.create_task(self._show_progress())
            try:
                await runner.run(self._source.lines())
            finally:
                progress.cancel()
                await asyncio.wait({progress})

    async def _show_progress(self) -> None:
        """On a terminal one line that changes, else a line now and then."""
        is_terminal = sys.stderr.isatty()
        begun_s = time.monotonic()
        try:
            while True:
                await asyncio.sleep(_TERMINAL_INTERVAL_S if is_terminal else _LOG_INTERVAL_S)
                line = self._progress(time.monotonic() - begun_s)
                if is_terminal:
                    sys.stderr.write(f"\r\x1b[K{line}")
                    sys.stderr.flush()
                else:
                    _say(line)
        finally:
            if is_terminal:
                sys.stderr.write("\r\x1b[K")

    def _progress(self, elapsed_s: float) -> str:
        counts = self.counts
        share = self._source.bytes_read / max(1, self._source.size)
        ended = counts.done + counts.failed
        return (
            f"{share:4.0%} read, {counts.done} done, {counts.failed} failed, {counts.running} running, "
            f"{ended / elapsed_s:.1f} lines/s, {counts.output_tokens / elapsed_s:,.0f} tokens/s"
        )


def _say(line: str) -> None:
    sys.stderr.write(f"llm-stack: {line}\n")
    sys.stderr.flush()
