"""Reads a file of options: YAML, flat, each name once, each value of its type. Knows no option by name.

Plain words mean what YAML 1.2 says: only true and false are truth values, 010 and 12:30 are no numbers. Tags
that would build objects are refused, and nothing is built but text, numbers, truth values and lists.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from llm_stack_server.cli.parser import suggestion
from llm_stack_server.config.options import Option
from llm_stack_server.config.values import WrongValue, value_of
from llm_stack_server.errors import StartupError

_MAX_BYTES = 2**20
_EXPONENT = r"[eE][-+]?[0-9]{1,3}"
_MAX_NAME_CHARS = 60


@dataclass(frozen=True, slots=True)
class Fault:
    """What is wrong with a file.

    Attributes:
        line: Where, from 1; 0 for the file as a whole.
        option: The name at fault, or "".
        message: What is wrong, for a person; it names the option.
    """

    line: int
    option: str
    message: str


@dataclass(frozen=True, slots=True)
class Entry:
    """One option that a file sets, on a line from 1."""

    value: Any
    line: int


@dataclass(frozen=True, slots=True)
class Document:
    """A file that was read.

    Attributes:
        path: Its path.
        entries: What it sets, by name; without what is faulty.
        faults: What is wrong with it, in the order of its lines.
    """

    path: Path
    entries: Mapping[str, Entry]
    faults: tuple[Fault, ...]

    def place(self, line: int) -> str:
        """A line, for a person."""
        return f"{self.path}:{line}" if line else str(self.path)

    def check(self) -> None:
        """Raise `StartupError` with the first fault, if there is one."""
        if self.faults:
            first, others = self.faults[0], len(self.faults) - 1
            more = f" (and {others} more; llm-stack config check lists all)" if others else ""
            raise StartupError(f"{self.place(first.line)}: {first.message}{more}")


def read_document(path: Path, options: Mapping[str, Option]) -> Document:
    """Read a file of ``options``.

    Raises:
        StartupError: there is no such file, or it cannot be read.
    """
    try:
        with path.open("rb") as file:
            raw = file.read(_MAX_BYTES + 1)
    except OSError as error:
        raise StartupError(f"config: {path}: {error.strerror}") from None
    if len(raw) > _MAX_BYTES:
        raise StartupError(f"config: {path} is larger than {_MAX_BYTES} bytes")
    entries: dict[str, Entry] = {}
    faults: list[Fault] = []
    try:
        root = yaml.compose(raw.decode("utf-8-sig"), Loader=_PlainLoader)
    except UnicodeDecodeError as error:
        faults.append(Fault(raw.count(b"\n", 0, error.start) + 1, "", "not valid UTF-8"))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        faults.append(Fault(mark.line + 1 if mark else 0, "", f"not valid YAML: {error.problem}"))
    except (yaml.YAMLError, RecursionError) as error:
        # Without the text of the error, which shows the file's.
        faults.append(Fault(0, "", f"not valid YAML ({type(error).__name__})"))
    else:
        if root is not None:
            faults += _read_entries(root, options, entries)
    return Document(path, entries, tuple(faults))


class _PlainLoader(yaml.SafeLoader):
    """Tells plain words by the rules of YAML 1.2's core."""

    yaml_implicit_resolvers = {}  # noqa: RUF012 -- the base declares its type


def _resolve(kind: str, pattern: str, first: str) -> None:
    _PlainLoader.add_implicit_resolver(
        f"tag:yaml.org,2002:{kind}", re.compile(rf"(?:{pattern})\Z"), list(first)
    )


_resolve("bool", r"true|True|TRUE|false|False|FALSE", "tTfF")
_resolve("null", r"~|null|Null|NULL", "~nN")
_PlainLoader.add_implicit_resolver("tag:yaml.org,2002:null", re.compile(r"\Z"), [""])
_resolve("int", r"[-+]?(?:0|[1-9][0-9_]{0,30})", "-+0123456789")
_resolve("float", rf"[-+]?[0-9][0-9_]{{0,30}}(?:\.[0-9]{{0,30}}(?:{_EXPONENT})?|{_EXPONENT})", "-+0123456789")


def _read_entries(
    root: yaml.Node, options: Mapping[str, Option], entries: dict[str, Entry]
) -> Iterator[Fault]:
    if not isinstance(root, yaml.MappingNode):
        yield Fault(_line(root), "", "must be options and their values, such as port: 8000")
        return
    seen: dict[str, int] = {}
    for key, node in root.value:
        line = _line(key)
        name = key.value if isinstance(key, yaml.ScalarNode) else ""
        if name in seen:
            yield Fault(line, name, f"{name[:_MAX_NAME_CHARS]}: stands on line {seen[name]} already")
            continue
        seen[name] = line
        option = options.get(name)
        if option is None:
            yield Fault(line, name, _unknown(name, options))
            continue
        try:
            entries[name] = Entry(value_of(node, option), line)
        except WrongValue as error:
            yield Fault(_line(node), name, f"{name}: {error}")


def _unknown(name: str, options: Mapping[str, Option]) -> str:
    shown = repr(name[:_MAX_NAME_CHARS])
    plain = name.lstrip("-").replace("-", "_")
    if plain in options:
        return f"{shown}: names have underscores here; did you mean {plain}?"
    return f"{shown}: there is no such option{suggestion(plain, options)}"


def _line(node: yaml.Node) -> int:
    return int(node.start_mark.line) + 1
