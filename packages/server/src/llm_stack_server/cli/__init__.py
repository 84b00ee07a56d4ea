"""The command ``llm-stack``: picks the subcommand and turns errors into one line. Imports nothing heavy."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Collection, Mapping, Sequence
from importlib import import_module, metadata  # not `version`: a module here has that name
from typing import Protocol, cast

from llm_stack_server.cli.parser import Parser

# Subcommands, by what one wants of them, each with its help line. A module is imported only when it is asked
# for: torch takes seconds.
COMMANDS: Mapping[str, Mapping[str, str]] = {
    "run a model": {
        "serve": "serve a model over HTTP, in OpenAI's format",
        "generate": "print the answer to one prompt",
        "chat": "talk to a model",
        "run-batch": "answer a file of requests, in OpenAI's batch format",
    },
    "measure and plan": {
        "bench": "measure throughput, latency, start-up or a running server",
        "plan": "say what a model would take and do on a GPU, without one",
    },
    "look": {
        "top": "watch a running server in the terminal",
        "config": "check a file of options, show those that hold, write one to begin with",
        "models": "list the architectures and how each is served, or check a checkpoint",
        "doctor": "look at this machine, and at a model, and say what works",
        "version": "print the versions of all parts",
        "completion": "print a script that completes commands and flags in a shell",
    },
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
    chosen = next((argument for argument in arguments if not argument.startswith("-")), "")
    parser = build_parser({chosen})
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


def build_parser(chosen: Collection[str]) -> Parser:
    """The parser of all commands; only the ``chosen`` ones have their arguments."""
    parser = Parser(
        prog="llm-stack",
        usage="%(prog)s COMMAND ...",
        description="Serve and run language models.",
        epilog=_overview(),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--version", action="version", version=f"llm-stack {metadata.version('llm-stack-server')}"
    )
    commands = parser.add_subparsers(
        dest="command", metavar="COMMAND", help=argparse.SUPPRESS, prog=parser.prog
    )
    for summaries in COMMANDS.values():
        for name, summary in summaries.items():
            # Without help: the overview lists them.
            command = commands.add_parser(name, description=summary[0].upper() + summary[1:] + ".")
            if name in chosen:
                _module(name).add_arguments(command)
    return parser


def _overview() -> str:
    width = max(len(name) for summaries in COMMANDS.values() for name in summaries)
    lines = []
    for title, summaries in COMMANDS.items():
        lines.append(f"{title}:")
        lines += [f"  {name:<{width}}  {summary}" for name, summary in summaries.items()]
        lines.append("")
    return "\n".join([*lines, "llm-stack COMMAND --help tells the flags of a command."])


def _module(name: str) -> Command:
    # A module is its own protocol: it has the two functions of `Command`.
    return cast("Command", import_module(f"llm_stack_server.cli.{name.replace('-', '_')}"))
