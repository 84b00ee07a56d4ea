"""Owns the command line: build, list and check tiny models (`python -m scripts.model_parity --help`)."""

import argparse
import json
import sys
import tempfile
from pathlib import Path

import torch

from . import checks, tiny_models


def main() -> int:
    """Runs the command."""
    torch.set_num_threads(1)
    arguments = _parser().parse_args()
    return arguments.run(arguments)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="model_parity", description=__doc__)
    commands = parser.add_subparsers(required=True)
    command = commands.add_parser("list", help="all cases")
    command.set_defaults(run=_list)
    command = commands.add_parser("build", help="build a tiny model and save it")
    command.add_argument("case")
    command.add_argument("folder", type=Path)
    command.set_defaults(run=_build)
    command = commands.add_parser("check", help="compare classes (with all variants) with transformers")
    command.add_argument("names", nargs="+", metavar="CLASS[:variant]")
    command.add_argument("--fallback", action="store_true", help="even if there is a native spec")
    command.add_argument("--json", action="store_true", help="one JSON line a case")
    command.set_defaults(run=_check)
    return parser


def _list(_: argparse.Namespace) -> int:
    print(*tiny_models.cases(), *tiny_models.pooling_cases(), *tiny_models.encoder_decoder_cases(), sep="\n")
    return 0


def _build(arguments: argparse.Namespace) -> int:
    tiny_models.save(tiny_models.build(arguments.case), arguments.folder)
    return 0


def _check(arguments: argparse.Namespace) -> int:
    passed = True
    for case in tiny_models.cases(arguments.names):
        with tempfile.TemporaryDirectory() as folder:
            result = checks.check_case(case, Path(folder), fallback=arguments.fallback)
        passed &= result.passed
        print(json.dumps(result.as_dict()) if arguments.json else _shown(result), flush=True)
    return 0 if passed else 1


def _shown(result: checks.Result) -> str:
    head = f"{'ok  ' if result.passed else 'FAIL'} {result.case}: {result.standing}, {result.seconds} s"
    lines = [f"{head}{': ' * bool(result.reason)}{result.reason}"]
    for name, outcome in result.checks.items():
        shown = outcome if isinstance(outcome, str) else f"{outcome:.1e}"
        lines.append(f"    {'ok  ' if checks.within(outcome) else 'FAIL'} {name:<10} {shown}")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
