"""The command ``llm-stack``: picks the subcommand and turns errors into one line. Imports nothing heavy."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.metadata import version
from typing import Protocol, cast

# Subcommand to its module (imported only when asked for: torch takes seconds) and its help line.
COMMANDS = {
    "serve": "serve a model over HTTP, in OpenAI's format",
    "generate": "print the answer to one prompt",
    "chat": "talk to a model",
    "run-batch": "answer a file of requests, in OpenAI's batch format",
    "bench": "measure throughput, latency, start-up or a running server",
    "plan": "say what a model would take and do on a GPU, without one",
    "models": "list the architectures and how each is served, or check a checkpoint",
    "doctor": "look at this machine, and at a model, and say what works",
    "version": "print the versions of all parts",
}


class Command(Protocol):
    """A subcommand's module."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare its arguments."""
        ...

    def run(self, parsed: argparse.Namespace) -> int:
        """Run it; the exit code."""
        ...


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; the exit code (0, 1 for a failure, 2 for wrong usage)."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    parser = _parser(arguments)
    parsed = parser.parse_args(arguments)
    if parsed.command is None:
        parser.print_help()
        return 2
    try:
        code = _module(parsed.command).run(parsed)
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # the reader of our output has left
        return 1
    except Exception as error:
        if not _is_expected(error):
            raise
        sys.stderr.write(f"llm-stack: error: {_one_line(error)}\n")
        return 1
    return code


def _is_expected(error: Exception) -> bool:
    from llm_engine.errors import EngineError

    from llm_stack_server.errors import ServerError

    return isinstance(error, EngineError | ServerError)


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())


def _parser(arguments: Sequence[str]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="llm-stack", description="Serve and run language models.")
    parser.add_argument("--version", action="version", version=f"llm-stack {version('llm-stack-server')}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    chosen = next((argument for argument in arguments if not argument.startswith("-")), None)
    for name, summary in COMMANDS.items():
        command = commands.add_parser(name, help=summary, description=summary[0].upper() + summary[1:] + ".")
        if name == chosen:
            _module(name).add_arguments(command)
    return parser


def _module(name: str) -> Command:
    # A module is its own protocol: it has the two functions of `Command`.
    return cast("Command", import_module(f"llm_stack_server.cli.{name.replace('-', '_')}"))
