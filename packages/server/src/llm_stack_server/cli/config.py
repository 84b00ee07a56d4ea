"""``llm-stack config``: check a file of options, show the options that hold, write a file to begin with."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path

from llm_engine.options import EngineOptions

from llm_stack_server.cli import serve
from llm_stack_server.cli.config_file import places_of, read_config
from llm_stack_server.cli.flags import from_flags
from llm_stack_server.config.document import read_document
from llm_stack_server.config.effective import as_json, as_table, as_yaml, effective_options
from llm_stack_server.config.example import example_file
from llm_stack_server.config.lint import lint
from llm_stack_server.config.options import all_options
from llm_stack_server.errors import StartupError
from llm_stack_server.settings import ServerSettings

_FORMATS = {"table": as_table, "yaml": as_yaml, "json": as_json}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the actions."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    check = actions.add_parser(
        "check",
        help="say what is wrong, risky or idle in a file",
        description="Say what is wrong, risky or idle in a file, without starting anything. "
        "The exit code is 1 where a server would not start.",
    )
    check.add_argument("file", type=Path, metavar="FILE", help="options in YAML")
    check.add_argument("--json", action="store_true", help="one JSON object")
    show = actions.add_parser(
        "show",
        help="print the options that hold, and where each comes from",
        description="Print the options that serve would run with, and where each comes from. "
        "Secrets are hidden.",
    )
    show.add_argument("--format", choices=tuple(_FORMATS), default="table", help="how (default: table)")
    serve.add_arguments(show)
    init = actions.add_parser(
        "init",
        help="write a file with every option, its meaning and its default",
        description="Write a file with every option, its meaning and its default.",
    )
    init.add_argument("file", nargs="?", type=Path, metavar="FILE", help="where (default: standard output)")
    init.add_argument("--overwrite", action="store_true", help="replace a file that is there")


def run(parsed: argparse.Namespace) -> int:
    """Do it; 1 where a checked file has an error."""
    match parsed.action:
        case "check":
            return _check(parsed.file, as_json=parsed.json)
        case "show":
            _show(parsed)
        case _:
            _init(parsed.file, overwrite=parsed.overwrite)
    return 0


def _check(path: Path, *, as_json: bool) -> int:
    document = read_document(path, all_options())
    remarks = lint(document, all_options())
    ok = not any(remark.level == "error" for remark in remarks)
    if as_json:
        result = {"ok": ok, "file": str(path), "remarks": [asdict(remark) for remark in remarks]}
        sys.stdout.write(json.dumps(result, indent=1) + "\n")
        return 0 if ok else 1
    for remark in remarks:
        sys.stdout.write(f"{document.place(remark.line)}: {remark.level}: {remark.message}\n")
    if not remarks:
        sys.stdout.write(f"{path}: all right, {len(document.entries)} options\n")
    return 0 if ok else 1


def _show(parsed: argparse.Namespace) -> None:
    options = all_options()
    read_config(parsed)
    given = {name: value for name, value in vars(parsed).items() if name in options}
    from_flags(ServerSettings, parsed)
    if "model" in given:
        from_flags(EngineOptions, parsed)
    sys.stdout.write(_FORMATS[parsed.format](effective_options(options, given, places_of(parsed))))


def _init(path: Path | None, *, overwrite: bool) -> None:
    text = example_file(all_options())
    if path is None:
        sys.stdout.write(text)
        return
    try:
        with path.open("w" if overwrite else "x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise StartupError(f"file: {path} is there already; --overwrite replaces it") from None
    except OSError as error:
        raise StartupError(f"file: {path}: {error.strerror}") from None
    sys.stderr.write(f"llm-stack: wrote {path}; llm-stack serve --config {path}\n")
