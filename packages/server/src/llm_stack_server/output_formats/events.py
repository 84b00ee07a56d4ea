"""What an output parser tells: the one event stream that every answer format shows in its own way."""

from __future__ import annotations

from typing import TypeAlias

import msgspec


class Text(msgspec.Struct, frozen=True):
    """More of the answer's text."""

    text: str


class Reasoning(msgspec.Struct, frozen=True):
    """More of the model's thinking."""

    text: str


class CallStart(msgspec.Struct, frozen=True):
    """A tool call begins.

    Attributes:
        call: Its index in the answer, from 0.
        name: The tool's name as the model wrote it.
    """

    call: int
    name: str


class Arguments(msgspec.Struct, frozen=True):
    """More of a call's arguments: JSON text, which the pieces of one call join to."""

    call: int
    text: str


class CallEnd(msgspec.Struct, frozen=True):
    """A tool call is whole; a call cut off by the token limit has none."""

    call: int


OutputEvent: TypeAlias = Text | Reasoning | CallStart | Arguments | CallEnd
