"""What options there are, read off the dataclasses of server and engine. Knows no option by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from types import NoneType, UnionType
from typing import Any, get_args, get_origin, get_type_hints

from llm_engine.options import EngineOptions

from llm_stack_server.cli.flag_groups import FLAG_GROUPS
from llm_stack_server.settings import ServerSettings

_TYPE_NAMES = {str: "text", int: "whole number", float: "number", bool: "true or false"}
_GROUP = "others"


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One option.

    Attributes:
        name: Of the field, and in a file; the flag has dashes for its underscores.
        kind: Type of its value, or of the members of a list.
        is_list: Whether it takes several.
        is_optional: Whether None is a value.
        default: Its value where nothing is said; `dataclasses.MISSING` where something must be.
        help: What it does.
        choices: All that it may be; empty where that is open.
        is_secret: Whether its value must not be shown.
        group: The title under which the help shows it.
    """

    name: str
    kind: type[Any]
    is_list: bool
    is_optional: bool
    default: Any
    help: str
    choices: tuple[str, ...]
    is_secret: bool
    group: str

    @property
    def flag(self) -> str:
        """As it is spelled on the command line."""
        return "--" + self.name.replace("_", "-")

    @property
    def is_required(self) -> bool:
        """Whether there is no default."""
        return self.default is MISSING

    @property
    def type_name(self) -> str:
        """Its type, for a person."""
        name = _TYPE_NAMES[self.kind]
        name = f"list of {name}" if self.is_list else name
        return f"{name}, or null" if self.is_optional else name


def options_of(owner: type[Any]) -> dict[str, Option]:
    """The options of a dataclass, by name, in the order of its fields."""
    hints = get_type_hints(owner)
    groups = {name: title for title, names in FLAG_GROUPS.get(owner.__name__, {}).items() for name in names}
    found = {}
    for field in fields(owner):
        kind, is_optional = _without_none(hints[field.name])
        is_list = get_origin(kind) is tuple
        found[field.name] = Option(
            name=field.name,
            kind=get_args(kind)[0] if is_list else kind,
            is_list=is_list,
            is_optional=is_optional,
            default=field.default,
            help=str(field.metadata.get("help", "")),
            choices=tuple(field.metadata.get("choices", ())),
            is_secret=bool(field.metadata.get("secret")),
            group=groups.get(field.name, _GROUP),
        )
    return found


def all_options() -> Mapping[str, Option]:
    """The options of server and engine in one name space, the model first, then group by group."""
    engine, server = options_of(EngineOptions), options_of(ServerSettings)
    assert not engine.keys() & server.keys(), "one file holds both, so no name may stand for two"
    options = engine | server
    ordered = [name for groups in FLAG_GROUPS.values() for names in groups.values() for name in names]
    return {name: options[name] for name in dict.fromkeys(["model", *ordered, *options]) if name in options}


def _without_none(hint: object) -> tuple[Any, bool]:
    if not isinstance(hint, UnionType):
        return hint, False
    kinds = [kind for kind in get_args(hint) if kind is not NoneType]
    assert len(kinds) == 1, f"an option needs one type, got {hint}"
    return kinds[0], True
