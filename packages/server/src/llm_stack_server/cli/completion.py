"""``llm-stack completion``: a script that completes commands and flags, made from the parser itself."""

from __future__ import annotations

import argparse
import sys

from llm_stack_server.cli.command_tree import read_tree
from llm_stack_server.cli.shells import SCRIPTS


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the shell."""
    parser.add_argument("shell", choices=tuple(SCRIPTS), help="bash: eval it; zsh and fish: source it")


def run(parsed: argparse.Namespace) -> int:
    """Print the script."""
    from llm_stack_server.cli import COMMANDS, build_parser  # here: that module imports this one

    parser = build_parser({name for summaries in COMMANDS.values() for name in summaries})
    sys.stdout.write(SCRIPTS[parsed.shell](read_tree(parser), parser.prog))
    return 0
