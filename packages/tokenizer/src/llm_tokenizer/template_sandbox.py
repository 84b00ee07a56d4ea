"""Owns the sandbox that chat templates run in, and its limits; knows nothing of messages or models.

The language is the one that transformers gives templates: jinja2's immutable sandbox, `trim_blocks` and
`lstrip_blocks`, loop controls, `{% generation %}`, `raise_exception`, `strftime_now`, and a `tojson` that
does not escape HTML. Limits, because a template may come from anyone: the size of any text it makes, the
number of loop turns, and the time. They are checked at loop turns, calls, operators, concatenations, filters.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import datetime
from types import GeneratorType
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context, Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

_NUMBER = re.compile(r"\d+")
_NESTED_FIELD = re.compile(r"\{[^{}]*\{")
_MAX_POWER_BITS = 4096
_PADDING_METHODS = frozenset({"center", "ljust", "rjust", "zfill", "expandtabs"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What one rendering may use.

    Attributes:
        text_chars: Longest text that it may make, the result included.
        loop_turns: Turns of all loops together.
        time_s: Seconds.
    """

    text_chars: int = 8 * 2**20
    loop_turns: int = 1_000_000
    time_s: float = 5.0


class Refused(jinja2.TemplateError):
    """The template called `raise_exception`."""


class LimitExceeded(jinja2.TemplateError):
    """The template went over a limit."""


@dataclass(slots=True)
class _Run:
    """What one rendering has left, and its clock."""

    turns_left: int
    deadline: float
    now: datetime | None


class _Guard(NodeTransformer):
    """Puts a check into each loop body and around each operation whose result may be a large text."""

    def visit_For(self, node: nodes.For) -> nodes.Node:  # noqa: N802  # jinja2 finds it by this name
        self.generic_visit(node)
        node.body.insert(0, nodes.ExprStmt(_check("count_turn", [], node.lineno), lineno=node.lineno))
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:  # noqa: N802  # same
        self.generic_visit(node)
        return _check("checked_text", [node], node.lineno)

    def visit_Filter(self, node: nodes.Filter) -> nodes.Node:  # noqa: N802  # same
        self.generic_visit(node)
        # Without an operand it is the head of a filter block, which must stay a filter.
        return node if node.node is None else _check("checked_text", [node], node.lineno)


def _check(method: str, arguments: list[nodes.Expr], lineno: int) -> nodes.Call:
    function = nodes.EnvironmentAttribute(method, lineno=lineno)
    return nodes.Call(function, arguments, [], None, None, lineno=lineno)


class _GenerationTag(Extension):
    """`{% generation %}` marks what the assistant says; for rendering it is transparent."""

    tags = {"generation"}  # noqa: RUF012  # jinja2 declares it as an instance attribute

    def parse(self, parser: Parser) -> nodes.Node:
        lineno = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_content"), [], [], body).set_lineno(lineno)

    def _content(self, caller: Macro) -> str:
        return caller()


class _SafeNamespace(Namespace):
    """A namespace that stores no names with a leading underscore."""

    def __init__(*args: Any, **kwargs: Any) -> None:  # noqa: ANN401  # `namespace(self=...)` stays possible
        self, *rest = args
        attributes = dict(*rest, **kwargs)
        for name in attributes:
            _refuse_underscore(name)
        Namespace.__init__(self, attributes)

    def __setitem__(self, name: str, value: object) -> None:
        _refuse_underscore(name)
        super().__setitem__(name, value)


def _refuse_underscore(name: object) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError(
            f"chat templates cannot store the underscore-prefixed name {name!r} in a namespace"
        )


class _DictMaker:
    """`dict(...)` and `dict.fromkeys(...)`, and nothing else of the type."""

    def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:  # noqa: ANN401  # any template value
        return dict(*args, **kwargs)

    def fromkeys(self, keys: Iterable[Any], value: object = None) -> dict[Any, Any]:
        return dict.fromkeys(keys, value)


class TemplateSandbox(ImmutableSandboxedEnvironment):
    """Compiles chat templates and runs them within `Limits`. Safe to use from several threads."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self, limits: Limits) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, loopcontrols])
        self._limits = limits
        self._current: ContextVar[_Run | None] = ContextVar("chat_template_run", default=None)
        self.filters["tojson"] = _to_json
        for name in ("center", "indent", "format", "replace", "join", "wordwrap"):
            self.filters[name] = _Guarded(self.filters[name], self, name)
        self.globals["raise_exception"] = _raise_exception
        self.globals["strftime_now"] = self._strftime_now
        self.globals["dict"] = _DictMaker()
        self.globals["namespace"] = _SafeNamespace

    def run(
        self, template: jinja2.Template, variables: Mapping[str, Any], now: datetime | None = None
    ) -> str:
        """The text of a template compiled here.

        Args:
            template: From `from_string`.
            variables: What the template sees.
            now: What `strftime_now` shows; `None` is the local time.

        Raises:
            jinja2.TemplateError: `LimitExceeded`, `Refused`, or another of jinja2's own.
        """
        parts: list[str] = []
        length = 0
        with self._running(now):
            for part in template.generate(variables):
                length += len(part)
                if length > self._limits.text_chars:
                    raise LimitExceeded(
                        f"the chat template's text is longer than {self._limits.text_chars} characters"
                    )
                parts.append(part)
        return "".join(parts)

    @contextmanager
    def _running(self, now: datetime | None) -> Iterator[None]:
        run = _Run(self._limits.loop_turns, time.monotonic() + self._limits.time_s, now)
        token = self._current.set(run)
        try:
            yield
        finally:
            self._current.reset(token)

    def _strftime_now(self, pattern: str) -> str:
        run = self._current.get()
        now = run.now if run is not None and run.now is not None else datetime.now()  # noqa: DTZ005  # local date
        return now.strftime(pattern)

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree = super()._parse(source, name, filename)
        _Guard().visit(tree)
        tree.set_environment(self)
        return tree

    def count_turn(self) -> None:
        """One turn of a loop, or one call."""
        run = self._current.get()
        if run is None:
            return
        run.turns_left -= 1
        if run.turns_left < 0:
            raise LimitExceeded(f"the chat template takes more than {self._limits.loop_turns} loop turns")
        if time.monotonic() > run.deadline:
            raise LimitExceeded(f"the chat template takes longer than {self._limits.time_s} s")

    def checked_text(self, value: object) -> object:
        """`value`, unless it is a text over the limit; what a lazy filter yields is counted on its way."""
        if isinstance(value, GeneratorType):
            return self._counted(value)
        self.check_size(len(value) if isinstance(value, str) else 0)
        return value

    def _counted(self, values: Iterable[Any]) -> Iterator[Any]:
        size = 0
        for value in values:
            self.count_turn()
            size += len(value) if isinstance(value, str) else 1
            self.check_size(size)
            yield value

    def check_size(self, size: int) -> None:
        """Refuse a text or list of `size` before it is made."""
        if size > self._limits.text_chars:
            raise LimitExceeded(
                f"the chat template makes a text longer than {self._limits.text_chars} characters"
            )

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:  # noqa: ANN401  # jinja2's
        """Operators whose result may be much larger than their operands."""
        if operator == "+" and isinstance(left, str | list | tuple) and isinstance(right, str | list | tuple):
            self.check_size(len(left) + len(right))
        elif operator == "*":
            for sized, times in ((left, right), (right, left)):
                if isinstance(sized, str | list | tuple | bytes) and isinstance(times, int):
                    self.check_size(len(sized) * times)
        elif operator == "**" and isinstance(left, int) and isinstance(right, int):
            if abs(left).bit_length() * right > _MAX_POWER_BITS:
                raise LimitExceeded("the chat template raises a number to a very high power")
        elif operator == "%" and isinstance(left, str):
            self.check_arguments("format", (left, right))
        return super().call_binop(context, operator, left, right)

    def call(self, context: Context, obj: Any, /, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401  # jinja2's
        """Calls of methods that can make a large text from a small one, and a turn for each call."""
        method = getattr(obj, "__wrapped__", obj)  # jinja2 wraps the methods that format
        owner, name = getattr(method, "__self__", None), getattr(method, "__name__", "")
        if owner is not self:
            self.count_turn()
        if isinstance(owner, str) and name in _PADDING_METHODS | {"replace", "join", "format", "format_map"}:
            self.check_arguments(name, (owner, *args, *kwargs.values()))
        return self.checked_text(super().call(context, obj, *args, **kwargs))

    def check_arguments(self, name: str, args: tuple[Any, ...]) -> None:
        """Refuse what a text method or filter would make too large; `args[0]` is what it works on."""
        if name in {"format", "format_map"}:
            self._check_format(args)
        elif name == "replace":
            texts = [str(value) for value in args[:3]]
            if len(texts) == 3:
                self.check_size(len(texts[0]) + texts[0].count(texts[1]) * len(texts[2]))
        elif name == "join":
            self._check_join(args)
        else:
            widths = [int(value) for value in args[1:] if isinstance(value, int)]
            lines = str(args[0]).count("\n") + str(args[0]).count("\t") + 1
            self.check_size(len(str(args[0])) + max(widths, default=0) * lines)

    def _check_format(self, args: tuple[Any, ...]) -> None:
        """As if each field were as wide as the largest number in the pattern or among the arguments."""
        pattern = str(args[0])
        values = [item for value in args[1:] for item in (value if isinstance(value, tuple) else (value,))]
        widths = [int(digits[:20]) for digits in _NUMBER.findall(pattern)]
        if "*" in pattern or _NESTED_FIELD.search(pattern):
            widths += [value for value in values if isinstance(value, int)]
        self.check_size(len(pattern) + max(pattern.count("%"), pattern.count("{")) * max(widths, default=0))

    def _check_join(self, args: tuple[Any, ...]) -> None:
        texts = [value for value in args if isinstance(value, str)]
        lists = [value for value in args if isinstance(value, list | tuple)]
        turns = sum(len(value) for value in lists) or max((len(text) for text in texts), default=0)
        inside = sum(len(item) for value in lists for item in value if isinstance(item, str))
        self.check_size(inside + turns * min((len(text) for text in texts), default=0))


class _Guarded:
    """A filter whose arguments are checked first."""

    def __init__(self, function: Any, sandbox: TemplateSandbox, name: str) -> None:  # noqa: ANN401  # a jinja2 filter
        self._function = function
        self._sandbox = sandbox
        self._name = name
        if (marker := getattr(function, "jinja_pass_arg", None)) is not None:
            # The filter takes the environment or evaluation context first; so does its guard.
            self.jinja_pass_arg = marker

    def __call__(self, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401  # any template value
        values = args[1:] if hasattr(self, "jinja_pass_arg") else args
        self._sandbox.check_arguments(self._name, (*values, *kwargs.values()))
        return self._function(*args, **kwargs)


def _to_json(
    value: object,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _raise_exception(message: object) -> None:
    raise Refused(str(message))
