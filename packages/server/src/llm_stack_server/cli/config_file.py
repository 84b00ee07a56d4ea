"""The flag ``--config``: options in a file stand in for flags that are not given."""

from __future__ import annotations

import argparse
from collections.abc import Collection, Mapping
from pathlib import Path

from llm_stack_server.config.document import Document, read_document
from llm_stack_server.config.options import all_options
from llm_stack_server.errors import StartupError

_PLACES = "config_places"


def add_config_flag(parser: argparse.ArgumentParser) -> None:
    """Declare the flag."""
    parser.add_argument(
        "--config",
        type=Path,
        metavar="FILE",
        help="options in YAML; flags win over them. See llm-stack config",
    )


def read_config(parsed: argparse.Namespace, *, skip: Collection[str] = ()) -> Document | None:
    """Add the options of the file that ``--config`` names, if it names one, but for those given as flags.

    Raises:
        StartupError: the file cannot be read, or something in it is wrong; with file and line.
    """
    if parsed.config is None:
        return None
    document = read_document(parsed.config, all_options())
    document.check()
    places = {}
    for name, entry in document.entries.items():
        if name not in vars(parsed) and name not in skip:
            setattr(parsed, name, entry.value)
            places[name] = document.place(entry.line)
    setattr(parsed, _PLACES, places)
    return document


def require_model(parsed: argparse.Namespace) -> None:
    """Refuse a command line that names no model.

    Raises:
        StartupError: neither an argument nor the file does.
    """
    if "model" not in vars(parsed):
        raise StartupError("model: name one on the command line, or in a file with --config")


def places_of(parsed: argparse.Namespace) -> Mapping[str, str]:
    """Where those options stand that a file has set, as ``file:line``."""
    places: Mapping[str, str] = getattr(parsed, _PLACES, {})
    return places


def place_of(parsed: argparse.Namespace, error: Exception) -> str:
    """Where a file set the option that ``error`` begins with, as ``file:line: ``; else ""."""
    place = places_of(parsed).get(str(error).partition(":")[0])
    return f"{place}: " if place else ""
