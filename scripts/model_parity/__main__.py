"""Owns the command line: `python -m scripts.model_parity --help`."""

import argparse
import contextlib
import json
import sys
import tempfile
from pathlib import Path

import torch
from llm_models.errors import ModelError

from . import checks, sweep, table, tiny_models
from .cases import Result, check_case
from .layers import layer_differences
from .two_ranks import TwoRanks


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
    command.add_argument("--tp", action="store_true", help="native ones also on two ranks")
    command.add_argument("--json", action="store_true", help="one JSON line a case")
    command.set_defaults(run=_check)
    command = commands.add_parser("layers", help="find the layer where a native model leaves the reference")
    command.add_argument("case", metavar="CLASS[:variant]")
    command.set_defaults(run=_layers)
    command = commands.add_parser("sweep", help="check classes in a worker process and keep the results")
    command.add_argument("names", nargs="*", metavar="CLASS[:variant]", help="all classes by default")
    command.add_argument("--again", choices=("none", "failed", "fallback", "all"), default="none",
                         help="which cases with a result are run again; named ones are")  # fmt: skip
    command.add_argument("--limit", type=float, default=300.0, help="seconds a case")
    command.add_argument("--workers", type=int, default=1, help="processes side by side")
    command.set_defaults(run=_sweep)
    command = commands.add_parser("table", help="write docs/models.md from the results")
    command.set_defaults(run=_table)
    command = commands.add_parser("worker", help="check the cases that come on standard input (for sweep)")
    command.set_defaults(run=_worker)
    return parser


def _list(_: argparse.Namespace) -> int:
    print(*_all_cases(), sep="\n")
    return 0


def _all_cases() -> list[str]:
    return [*tiny_models.cases(), *tiny_models.pooling_cases(), *tiny_models.encoder_decoder_cases()]


def _build(arguments: argparse.Namespace) -> int:
    tiny_models.save(tiny_models.build(arguments.case), arguments.folder)
    return 0


def _check(arguments: argparse.Namespace) -> int:
    passed = True
    with contextlib.ExitStack() as stack:
        ranks = stack.enter_context(TwoRanks()) if arguments.tp else None
        for case in tiny_models.cases(arguments.names):
            with tempfile.TemporaryDirectory() as folder:
                result = check_case(case, Path(folder), fallback=arguments.fallback, ranks=ranks)
            passed &= result.passed
            print(json.dumps(result.as_dict()) if arguments.json else _shown(result), flush=True)
    return 0 if passed else 1


def _layers(arguments: argparse.Namespace) -> int:
    with tempfile.TemporaryDirectory() as folder:
        try:
            found = layer_differences(arguments.case, Path(folder))
        except (ModelError, tiny_models.CannotBuild) as error:
            print(error)
            return 1
    for difference in found:
        mark = "ok  " if checks.within(difference.error) else "FAIL"
        print(f"{mark} {difference.place:<16} {difference.error:.1e}")
    return 0


def _sweep(arguments: argparse.Namespace) -> int:
    done = sweep.read_results()
    again = {
        "none": lambda _: False,
        "failed": lambda result: not result["passed"],
        "fallback": lambda result: not result["passed"] or result["standing"] != "native",
        "all": lambda _: True,
    }[arguments.again]
    cases = tiny_models.cases(arguments.names) if arguments.names else _all_cases()
    if not arguments.names:
        cases = [case for case in cases if case not in done or again(done[case])]
    return 0 if sweep.sweep(cases, limit_s=arguments.limit, workers=arguments.workers) else 1


def _table(_: argparse.Namespace) -> int:
    table.PAGE.write_text(table.page(sweep.read_results()))
    return 0


def _worker(_: argparse.Namespace) -> int:
    with TwoRanks() as ranks:
        for line in sys.stdin:
            with tempfile.TemporaryDirectory() as folder:
                result = check_case(line.strip(), Path(folder), ranks=ranks)
            print(json.dumps(result.as_dict()), flush=True)
    return 0


def _shown(result: Result) -> str:
    head = f"{'ok  ' if result.passed else 'FAIL'} {result.case}: {result.standing}, {result.seconds} s"
    lines = [f"{head}{': ' * bool(result.reason)}{result.reason}"]
    for name, outcome in result.checks.items():
        shown = outcome if isinstance(outcome, str) else f"{outcome:.1e}"
        lines.append(f"    {'ok  ' if checks.within(outcome) else 'FAIL'} {name:<10} {shown}")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
