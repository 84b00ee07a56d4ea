"""Writes the options down: a commented file to begin with, and the table of the documentation."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from typing import Any

import yaml

from llm_stack_server.config.options import Option

_WIDTH = 100
_MODEL = "smollm2"
_HEAD = """\
# Options of llm-stack, in YAML. Use it with: llm-stack serve --config FILE
# Flags win over it. Take the # away from a line to set it; what stands there is the default.
"""


def example_file(options: Mapping[str, Option]) -> str:
    """A file with every option: the model set, all others as comments with their defaults."""
    lines = [_HEAD]
    for title, members in groupby(options.values(), key=lambda option: option.group):
        lines.append(f"# {title} {'-' * (_WIDTH - len(title) - 3)}")
        for option in members:
            lines += ["", *_described(option), _setting(option)]
        lines.append("")
    return "\n".join(lines)


def scalar(value: Any) -> str:  # noqa: ANN401 -- of any option
    """A value as YAML has it, on one line."""
    if isinstance(value, tuple):
        return f"[{', '.join(scalar(item) for item in value)}]"
    if isinstance(value, float):
        return repr(value)
    text: str = yaml.safe_dump(value, default_flow_style=True, width=2**20, allow_unicode=True)
    return text.removesuffix("\n").removesuffix("\n...")


def markdown_table(options: Iterable[Option]) -> str:
    """The table of the documentation."""
    rows = ["| option | type | default | meaning |", "|---|---|---|---|"]
    for option in options:
        default = "" if option.is_required else f"`{scalar(option.default)}`"
        meaning = option.help.replace("|", "\\|")
        if option.choices:
            meaning += f" One of {', '.join(f'`{choice}`' for choice in option.choices)}."
        rows.append(f"| `{option.name}` | {option.type_name} | {default} | {meaning} |")
    return "\n".join(rows) + "\n"


def _described(option: Option) -> Iterator[str]:
    text = option.help
    if option.choices:
        text += f" One of {', '.join(option.choices)}."
    text += f" ({option.type_name})"
    yield from textwrap.wrap(text, _WIDTH, initial_indent="# ", subsequent_indent="# ")


def _setting(option: Option) -> str:
    if option.is_required:
        return f"{option.name}: {_MODEL}"
    return f"#{option.name}: {scalar(option.default)}"
