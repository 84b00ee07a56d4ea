"""Owns what one rendering of a template may use, and the judgement of how large a value or a call becomes.

Knows nothing of jinja's syntax trees. Sizes are judged before a text is made, from above; what a rendering
has made is added up, as a template can keep all of it.
"""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from itertools import chain
from typing import Any

import jinja2

_NUMBER = re.compile(r"\d+")
_NESTED_FIELD = re.compile(r"\{[^{}]*\{")
_MAX_NUMBER_BITS = 2**16
_MAX_DIGITS = 400
_MAX_INDENT = 64
_MAX_BATCH = 100_000
_SMALL_TEXT_CHARS = 2**16
_PIECE_BYTES = 80  # of a short text in a list, with its place there
_SCALARS = (str, int, float, type(None), jinja2.Undefined)

PADDING_METHODS = frozenset({"center", "ljust", "rjust", "zfill", "expandtabs"})
SPLITTING_METHODS = frozenset({"split", "rsplit", "splitlines"})
CHECKED_METHODS = (
    PADDING_METHODS | SPLITTING_METHODS | {"replace", "join", "format", "format_map", "translate"}
)
# Filters whose cost grows faster than their input; no model's template is known to give them long texts.
_SMALL_FILTERS = frozenset({"urlize", "wordwrap", "striptags", "xmlattr", "pprint", "title", "wordcount"})
# Filters that write values out, compare or sort them: a value that holds another many times costs each time.
_WRITING_FILTERS = frozenset(
    {
        "string",
        "tojson",
        "upper",
        "lower",
        "capitalize",
        "trim",
        "escape",
        "e",
        "forceescape",
        "urlencode",
        "truncate",
        "safe",
        "int",
        "float",
        "sort",
        "unique",
        "min",
        "max",
        "groupby",
        "dictsort",
        "select",
        "reject",
        "selectattr",
        "rejectattr",
    }
)
_OTHER_FILTERS = frozenset({"center", "indent", "format", "replace", "join", "batch", "round", "sum", "list"})
CHECKED_FILTERS = _SMALL_FILTERS | _WRITING_FILTERS | _OTHER_FILTERS


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What one rendering may use.

    Attributes:
        text_chars: Longest text that it may make, the result included.
        made_bytes: All texts that it makes together, intermediate ones and repeats included.
        loop_turns: Turns of all loops together.
        time_s: Seconds.
    """

    text_chars: int = 8 * 2**20
    made_bytes: int = 128 * 2**20
    loop_turns: int = 1_000_000
    time_s: float = 5.0


class LimitExceeded(jinja2.TemplateError):
    """The template went over a limit."""


class Meter:
    """What one rendering has left, and its clock."""

    def __init__(self, limits: Limits, now: datetime | None) -> None:
        self.now = now
        self._limits = limits
        self._turns_left = limits.loop_turns
        self._bytes_left = limits.made_bytes
        self._deadline = time.monotonic() + limits.time_s

    def count_turn(self, written_chars: int = 0) -> None:
        """One turn of a loop, or one call, which writes so many of the template's own characters."""
        self._turns_left -= 1
        if self._turns_left < 0:
            raise LimitExceeded(f"the chat template takes more than {self._limits.loop_turns} loop turns")
        self.charge(written_chars)
        self.check_time()

    def check_time(self) -> None:
        """Refuse to go on after the deadline."""
        if time.monotonic() > self._deadline:
            raise LimitExceeded(f"the chat template takes longer than {self._limits.time_s} s")

    def charge(self, made_bytes: int) -> None:
        """Add to what the rendering has made."""
        self._bytes_left -= made_bytes
        if self._bytes_left < 0:
            raise LimitExceeded(f"the chat template makes more than {self._limits.made_bytes} bytes of text")

    def charge_value(self, value: object) -> None:
        """Add a text or list that was made."""
        if isinstance(value, str | list | tuple | bytes):
            self.check_size(len(value))
            self.charge(sys.getsizeof(value))

    def check_size(self, size: int) -> None:
        """Refuse a text or list of `size` before it is made."""
        if size > self._limits.text_chars:
            raise LimitExceeded(
                f"the chat template makes a text longer than {self._limits.text_chars} characters"
            )

    def check_written(self, value: object, indent: int = 0) -> int:
        """Refuse a value that is too large written out, or to compare; returns about how large it is."""
        if isinstance(value, str):
            return len(value)
        if isinstance(value, _SCALARS):
            return 8
        size, steps = 0, 0
        # Iterators, so that nothing is copied; as many as containers are open.
        open_values: list[Iterator[object]] = [iter((value,))]
        while open_values:
            for item in open_values[-1]:
                steps += 1
                if steps % 4096 == 0:
                    self.check_time()
                size += 2 + indent * len(open_values) + (len(item) if isinstance(item, str) else 0)
                self.check_size(size)
                if isinstance(item, Mapping):
                    open_values.append(chain.from_iterable(item.items()))
                    break
                if isinstance(item, list | tuple):
                    open_values.append(iter(item))
                    break
            else:
                open_values.pop()
        return size

    def check_operator(self, operator: str, left: Any, right: Any) -> None:  # noqa: ANN401  # template values
        """Refuse an operator whose result would be much larger than its operands."""
        texts = (str, list, tuple, bytes)
        if operator == "+" and isinstance(left, texts) and isinstance(right, texts):
            self.check_size(len(left) + len(right))
            self.charge(len(left) * _item_bytes(left) + len(right) * _item_bytes(right))
        elif operator == "*":
            for sized, times in ((left, right), (right, left)):
                if isinstance(sized, texts) and isinstance(times, int):
                    self.check_size(len(sized) * max(times, 0))
                    self.charge(len(sized) * _item_bytes(sized) * max(times, 0))
            if isinstance(left, int) and isinstance(right, int):
                _check_bits(left.bit_length() + right.bit_length())
        elif operator == "**" and isinstance(left, int) and isinstance(right, int):
            _check_bits(left.bit_length() * max(right, 0))
        elif operator == "%" and isinstance(left, str):
            self.check_arguments("format", (left, right))

    def check_arguments(self, name: str, args: tuple[Any, ...]) -> None:
        """Refuse what a text method or filter would make too large; `args[0]` is what it works on."""
        numbers = [value for value in args[1:] if isinstance(value, int)]
        indent = min(max(numbers, default=0), _MAX_INDENT) if name == "tojson" else 0
        written = [self.check_written(value, indent) for value in args]
        self.check_size(sum(written))
        if name in {"format", "format_map"}:
            self._check_format(args, written)
        elif name == "join":
            self._check_join(args)
        elif name in PADDING_METHODS | {"indent", "wordwrap"}:
            self._check_padding(args)
        else:
            self._check_other(name, args)

    def _check_other(self, name: str, args: tuple[Any, ...]) -> None:
        first, rest = args[0] if args else None, args[1:]
        numbers = [value for value in rest if isinstance(value, int)]
        if name == "replace" and len(args) >= 3:
            texts = [str(value) for value in args[:3]]
            self.check_size(len(texts[0]) + texts[0].count(texts[1]) * len(texts[2]))
        elif name == "translate" and rest and isinstance(rest[0], Mapping):
            longest = max((len(text) for text in rest[0].values() if isinstance(text, str)), default=1)
            self.check_size(len(str(first)) * longest)
        elif name == "tojson":
            wide = max(numbers, default=0) > _MAX_INDENT
            if wide or sum(self.check_written(value) for value in rest) > 8 * _MAX_INDENT:
                raise LimitExceeded("the chat template asks for very wide JSON")
        elif name == "round" and max(map(abs, numbers), default=0) > _MAX_DIGITS:
            raise LimitExceeded("the chat template rounds to very many digits")
        elif name == "batch" and max(numbers, default=0) > _MAX_BATCH:
            raise LimitExceeded("the chat template makes very long batches")
        elif name in SPLITTING_METHODS and isinstance(first, str):
            separator = next((value for value in rest if isinstance(value, str) and value), None)
            pieces = len(first) // 2 if separator is None else first.count(separator)
            self.charge(_PIECE_BYTES * min([pieces, *(number for number in numbers if number >= 0)]))
        elif name in {"list", "sort", "unique"} and isinstance(first, str):
            self.charge(_PIECE_BYTES * len(first))

    def _check_format(self, args: tuple[Any, ...], written: list[int]) -> None:
        """As if each field were as wide as the largest number in the pattern, or the largest argument."""
        pattern = str(args[0])
        values = [item for value in args[1:] for item in (value if isinstance(value, tuple) else (value,))]
        widths = [int(digits[:20]) for digits in _NUMBER.findall(pattern)]
        if "*" in pattern or _NESTED_FIELD.search(pattern):
            widths += [value for value in values if isinstance(value, int)]
        self.check_size(len(pattern) + max(pattern.count("%"), pattern.count("{")) * max(widths, default=0))
        self.check_size(pattern.count("{") * max(written[1:], default=0))

    def _check_join(self, args: tuple[Any, ...]) -> None:
        texts = [value for value in args if isinstance(value, str)]
        lists = [value for value in args if isinstance(value, list | tuple)]
        turns = sum(len(value) for value in lists) or max((len(text) for text in texts), default=0)
        inside = sum(self.check_written(value) for value in lists)
        self.check_size(inside + turns * min((len(text) for text in texts), default=0))

    def _check_padding(self, args: tuple[Any, ...]) -> None:
        text = str(args[0])
        widths = [value for value in args[1:] if isinstance(value, int)]
        widths += [len(value) for value in args[1:] if isinstance(value, str)]
        lines = text.count("\n") + text.count("\t") + text.count(" ") + 1
        self.check_size(len(text) + max(widths, default=0) * lines)

    def check_filter(self, name: str, args: tuple[Any, ...]) -> None:
        """`check_arguments`, and for some filters a limit that is lower."""
        if name in _SMALL_FILTERS and sum(self.check_written(value) for value in args) > _SMALL_TEXT_CHARS:
            raise LimitExceeded(f"the chat template gives the filter {name} a long text")
        if (
            name == "wordwrap"
            and sum(len(value) for value in args[1:] if isinstance(value, str)) > _MAX_INDENT
        ):
            raise LimitExceeded("the chat template wraps words with a long text")
        self.check_arguments(name, args)


def _item_bytes(value: str | bytes | list[Any] | tuple[Any, ...]) -> int:
    if isinstance(value, str):
        return 1 if value.isascii() else 4
    return 1 if isinstance(value, bytes) else 8


def _check_bits(bits: int) -> None:
    if bits > _MAX_NUMBER_BITS:
        raise LimitExceeded("the chat template makes a very large number")
