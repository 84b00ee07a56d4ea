"""What an output parser tells: the one event stream that every answer format shows in its own way."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class Text:
    """More of the answer's text."""

    text: str


@dataclass(frozen=True, slots=True)
class Reasoning:
    """More of the model's thinking."""

    text: str


@dataclass(frozen=True, slots=True)
class CallStart:
    """A tool call begins.

    Attributes:
        call: Its index in the answer, from 0.
        name: The tool's name as the model wrote it.
    """

    call: int
    name: str


@dataclass(frozen=True, slots=True)
class Arguments:
    """More of a call's arguments: JSON text, which the pieces of one call join to."""

    call: int
    text: str


@dataclass(frozen=True, slots=True)
class CallEnd:
    """A tool call is whole; a call cut off by the token limit has none."""

    call: int


OutputEvent: TypeAlias = Text | Reasoning | CallStart | Arguments | CallEnd
