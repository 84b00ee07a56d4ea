"""Turns dataclass fields into command-line flags, and parsed flags back. Knows no option by name."""

from __future__ import annotations

import argparse
from collections.abc import Collection, Sequence
from dataclasses import fields
from typing import Any, TypeVar

from llm_engine.errors import EngineError

from llm_stack_server.cli.config_file import place_of
from llm_stack_server.cli.flag_groups import FLAG_GROUPS
from llm_stack_server.config.options import Option, options_of
from llm_stack_server.errors import ServerError, StartupError

Options = TypeVar("Options")
_FEW_CHOICES = 6  # more are told in the help's text, not in the flag's line


def add_flags(parser: argparse.ArgumentParser, options: type[Any], *, skip: Collection[str] = ()) -> None:
    """Add one flag for each field of ``options``: ``max_model_len`` becomes ``--max-model-len``.

    A flag that is not given leaves no trace, so the dataclass's own default stands.
    """
    left = {name: option for name, option in options_of(options).items() if name not in skip}
    for title, names in FLAG_GROUPS.get(options.__name__, {}).items():
        _add_group(parser, title, [left.pop(name) for name in names if name in left])
    _add_group(parser, _title(options), list(left.values()))


def from_flags(options: type[Options], parsed: argparse.Namespace, **more: object) -> Options:
    """The dataclass from the flags that were given; ``more`` is set on top.

    Raises:
        Exception: whatever the dataclass raises for a value out of range; `StartupError` with file and line
            where the value stands in a file.
    """
    names = {field.name for field in fields(options)}  # type: ignore[arg-type]
    given = {name: value for name, value in vars(parsed).items() if name in names}
    values = {name: tuple(value) if isinstance(value, list) else value for name, value in given.items()}
    try:
        return options(**(values | more))
    except (ServerError, EngineError) as error:
        place = place_of(parsed, error)
        if not place:
            raise
        raise StartupError(f"{place}{error}") from None


def _add_group(parser: argparse.ArgumentParser, title: str, members: Sequence[Option]) -> None:
    if members:
        group = parser.add_argument_group(title)
        for option in members:
            _add_flag(group, option)


def _add_flag(group: argparse._ArgumentGroup, option: Option) -> None:
    help_text = option.help.replace("%", "%%")
    has_default = not (option.is_optional or option.is_required or option.default in ((), ""))
    shown = f" (default: {option.default})" if has_default else ""
    common: dict[str, Any] = {"dest": option.name, "default": argparse.SUPPRESS, "help": help_text + shown}
    if option.kind is bool:
        group.add_argument(option.flag, action=argparse.BooleanOptionalAction, **common)
    elif option.is_list:
        group.add_argument(option.flag, action="append", type=option.kind, metavar="VALUE", **common)
    else:
        choices = option.choices or None
        metavar = None if choices and len(choices) <= _FEW_CHOICES else option.kind.__name__.upper()
        if choices and metavar:
            common["help"] += f" One of {', '.join(choices)}."
        group.add_argument(option.flag, type=option.kind, choices=choices, metavar=metavar, **common)


def _title(options: type[Any]) -> str:
    return {"EngineOptions": "engine", "ServerSettings": "server"}.get(options.__name__, options.__name__)
