"""The command line of the conformance suite; knows nothing of single rules."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence as Arguments
from pathlib import Path

from llm_scheduler.conformance.operations import Sequence
from llm_scheduler.conformance.rules import Rule
from llm_scheduler.conformance.suite import cases, examine
from llm_scheduler.errors import SchedulerError


def main(arguments: Arguments[str] | None = None) -> int:
    """Check a scheduler; return 0 where it conforms, 1 where it does not, 2 where it is not found."""
    parsed = _parser().parse_args(arguments)
    sys.path.insert(0, str(Path.cwd()))
    if parsed.rules:
        sys.stdout.write("".join(f"{rule.label:24}{rule.text}\n" for rule in Rule))
        return 0
    if parsed.scheduler is None:
        sys.stderr.write("name a scheduler: an entry-point name or module:Class\n")
        return 2
    sequences = cases(parsed.sequences, parsed.seed, policy=parsed.policy)
    try:
        report = examine(parsed.scheduler, sequences, watch=_show if parsed.verbose else str)
    except SchedulerError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    sys.stdout.write(f"{report}\n")
    return 0 if report.conforms else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m llm_scheduler.conformance",
        description="Check that a scheduler keeps the protocol.",
    )
    parser.add_argument("scheduler", nargs="?", help="an entry-point name or module:Class")
    parser.add_argument("--sequences", type=_count, default=500, help="random sequences (default: 500)")
    parser.add_argument("--seed", type=_count, default=0, help="seed of the first of them (default: 0)")
    parser.add_argument("--policy", default="fcfs", help="policy that the configs name (default: fcfs)")
    parser.add_argument("--rules", action="store_true", help="list the rules and stop")
    parser.add_argument("-v", "--verbose", action="store_true", help="name each sequence before it runs")
    return parser


def _count(text: str) -> int:
    value = int(text)
    if value < 0:
        raise argparse.ArgumentTypeError("expected 0 or more")
    return value


def _show(sequence: Sequence) -> None:
    sys.stdout.write(f"{sequence}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
