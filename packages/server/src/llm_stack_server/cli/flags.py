"""Turns dataclass fields into command-line flags, and parsed flags back. Knows no option by name."""

from __future__ import annotations

import argparse
from collections.abc import Collection, Mapping, Sequence
from dataclasses import MISSING, Field, fields
from types import NoneType, UnionType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from llm_stack_server.cli.flag_groups import FLAG_GROUPS

Options = TypeVar("Options")
_FEW_CHOICES = 6  # more are told in the help's text, not in the flag's line


def add_flags(parser: argparse.ArgumentParser, options: type[Any], *, skip: Collection[str] = ()) -> None:
    """Add one flag for each field of ``options``: ``max_model_len`` becomes ``--max-model-len``.

    A flag that is not given leaves no trace, so the dataclass's own default stands.
    """
    hints = get_type_hints(options)
    left = {field.name: field for field in fields(options) if field.name not in skip}
    for title, names in FLAG_GROUPS.get(options.__name__, {}).items():
        _add_group(parser, title, [left.pop(name) for name in names if name in left], hints)
    _add_group(parser, _title(options), list(left.values()), hints)


def from_flags(options: type[Options], parsed: argparse.Namespace, **more: object) -> Options:
    """The dataclass from the flags that were given; ``more`` is set on top.

    Raises:
        Exception: whatever the dataclass raises for a value out of range.
    """
    names = {field.name for field in fields(options)}  # type: ignore[arg-type]
    given = {name: value for name, value in vars(parsed).items() if name in names}
    values = {name: tuple(value) if isinstance(value, list) else value for name, value in given.items()}
    return options(**(values | more))


def _add_group(
    parser: argparse.ArgumentParser, title: str, members: Sequence[Field[Any]], hints: Mapping[str, object]
) -> None:
    if members:
        group = parser.add_argument_group(title)
        for field in members:
            _add_flag(group, field, hints[field.name])


def _add_flag(group: argparse._ArgumentGroup, field: Field[Any], hint: object) -> None:
    flag = "--" + field.name.replace("_", "-")
    kind, is_optional = _strip_none(hint)
    help_text = str(field.metadata.get("help", "")).replace("%", "%%")
    default = None if field.default is MISSING else field.default
    shown = "" if is_optional or default in (None, (), "") else f" (default: {default})"
    common: dict[str, Any] = {"dest": field.name, "default": argparse.SUPPRESS, "help": help_text + shown}
    if kind is bool:
        group.add_argument(flag, action=argparse.BooleanOptionalAction, **common)
    elif get_origin(kind) is tuple:
        group.add_argument(flag, action="append", type=get_args(kind)[0], metavar="VALUE", **common)
    else:
        choices = field.metadata.get("choices")
        metavar = None if choices and len(choices) <= _FEW_CHOICES else kind.__name__.upper()
        if choices and metavar:
            common["help"] += f" One of {', '.join(choices)}."
        group.add_argument(flag, type=kind, choices=choices, metavar=metavar, **common)


def _strip_none(hint: object) -> tuple[Any, bool]:
    if not isinstance(hint, UnionType):
        return hint, False
    kinds = [kind for kind in get_args(hint) if kind is not NoneType]
    assert len(kinds) == 1, f"a flag needs one type, got {hint}"
    return kinds[0], True


def _title(options: type[Any]) -> str:
    return {"EngineOptions": "engine", "ServerSettings": "server"}.get(options.__name__, options.__name__)
