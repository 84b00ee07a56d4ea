"""Owns the sandbox that chat templates run in, and its limits; knows nothing of messages or models.

The language is the one that transformers gives templates: jinja2's immutable sandbox, `trim_blocks` and
`lstrip_blocks`, loop controls, `{% generation %}`, `raise_exception`, `strftime_now`, and a `tojson` that
does not escape HTML. Limits, because a template may come from anyone: the size of any text it makes, the
number of loop turns, and the time. They are checked at loop turns, calls, operators, concatenations, filters.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from contextvars import ContextVar
from datetime import datetime
from types import GeneratorType
from typing import Any, cast

import jinja2
from jinja2 import nodes, pass_environment
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.filters import do_sum, make_attrgetter
from jinja2.parser import Parser
from jinja2.runtime import Context, Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

from llm_tokenizer.template_limits import CHECKED_FILTERS, CHECKED_METHODS, LimitExceeded, Limits, Meter

# The largest template of a known model has 17 thousand characters.
_MAX_SOURCE_CHARS = 2**18


class Refused(jinja2.TemplateError):
    """The template called `raise_exception`."""


_COMPARING_TESTS = frozenset(
    {
        "eq",
        "equalto",
        "==",
        "ne",
        "!=",
        "lt",
        "lessthan",
        "<",
        "le",
        "<=",
        "gt",
        "greaterthan",
        ">",
        "ge",
        ">=",
        "in",
    }
)


class _Guard(NodeTransformer):
    """Puts a check into each loop body and around each operation whose result may be a large text."""

    def visit_For(self, node: nodes.For) -> nodes.Node:  # noqa: N802  # jinja2 finds it by this name
        return self._counted(node)

    def visit_Macro(self, node: nodes.Macro) -> nodes.Node:  # noqa: N802  # same
        return self._counted(node)

    def visit_CallBlock(self, node: nodes.CallBlock) -> nodes.Node:  # noqa: N802  # same
        return self._counted(node)

    def _counted(self, node: Any) -> nodes.Node:  # noqa: ANN401  # a node with a body
        written = sum(len(data.data) for data in node.find_all(nodes.TemplateData))
        self.generic_visit(node)
        count = _check("count_turn", [nodes.Const(written, lineno=node.lineno)], node.lineno)
        node.body.insert(0, nodes.ExprStmt(count, lineno=node.lineno))
        return cast("nodes.Node", node)

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:  # noqa: N802  # same
        self.generic_visit(node)
        node.nodes = [_check("checked_written", [operand], node.lineno) for operand in node.nodes]
        return _check("checked_text", [node], node.lineno)

    def visit_Compare(self, node: nodes.Compare) -> nodes.Node:  # noqa: N802  # same
        self.generic_visit(node)
        node.expr = _check("checked_written", [node.expr], node.lineno)
        return node

    def visit_Test(self, node: nodes.Test) -> nodes.Node:  # noqa: N802  # same
        self.generic_visit(node)
        if node.name in _COMPARING_TESTS:
            node.node = _check("checked_written", [node.node], node.lineno)
        return node

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
        # Without the optimizer, which would run filters on constants when no limit is counted.
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            optimized=False,
            finalize=self.checked_output,
            extensions=[_GenerationTag, loopcontrols],
        )
        self._limits = limits
        self._meter: ContextVar[Meter | None] = ContextVar("chat_template_meter", default=None)
        self.filters["tojson"] = _to_json
        self.filters["sum"] = _sum
        for name in CHECKED_FILTERS:
            self.filters[name] = _Guarded(self.filters[name], self, name)
        del self.globals["lipsum"]
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
        meter = Meter(self._limits, now)
        token = self._meter.set(meter)
        try:
            for part in template.generate(variables):
                length += len(part)
                meter.check_size(length)
                parts.append(part)
        finally:
            self._meter.reset(token)
        return "".join(parts)

    def _strftime_now(self, pattern: str) -> str:
        meter = self._meter.get()
        now = meter.now if meter is not None else None
        return (now or datetime.now()).strftime(pattern)  # noqa: DTZ005  # templates ask for the local date

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        if len(source) > _MAX_SOURCE_CHARS:
            raise LimitExceeded(f"a chat template has at most {_MAX_SOURCE_CHARS} characters")
        tree = super()._parse(source, name, filename)
        _Guard().visit(tree)
        tree.set_environment(self)
        return tree

    def count_turn(self, written_chars: int = 0) -> None:
        """One turn of a loop or one call, which writes so many characters of the template itself."""
        if (meter := self._meter.get()) is not None:
            meter.count_turn(written_chars)

    def checked_text(self, value: object) -> object:
        """`value`, unless it is a text over the limit; what a lazy filter yields is counted on its way."""
        meter = self._meter.get()
        if meter is None:
            return value
        if isinstance(value, GeneratorType):
            return _counted_items(value, meter)
        meter.charge_value(value)
        return value

    def checked_written(self, value: object) -> object:
        """`value`, unless it is too large written out, as one that holds another many times."""
        if not isinstance(value, str) and (meter := self._meter.get()) is not None:
            meter.check_written(value)
        return value

    def checked_output(self, value: object) -> object:
        """What an expression of the template's text gives; it is added to what the rendering has made."""
        if (meter := self._meter.get()) is not None:
            meter.charge(meter.check_written(value))
        return value

    def check_filter(self, name: str, args: tuple[Any, ...]) -> None:
        """Refuse a filter whose result would be too large."""
        if (meter := self._meter.get()) is not None:
            meter.check_filter(name, args)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:  # noqa: ANN401  # jinja2's
        """Operators whose result may be much larger than their operands."""
        if (meter := self._meter.get()) is not None:
            meter.check_operator(operator, left, right)
        return super().call_binop(context, operator, left, right)

    def call(self, context: Context, obj: Any, /, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401  # jinja2's
        """Calls of methods that can make a large text from a small one, and a turn for each call."""
        method = getattr(obj, "__wrapped__", obj)  # jinja2 wraps the methods that format
        owner, name = getattr(method, "__self__", None), getattr(method, "__name__", "")
        if owner is self:
            return super().call(context, obj, *args, **kwargs)
        self.count_turn()
        meter = self._meter.get()
        if meter is not None and isinstance(owner, str) and name in CHECKED_METHODS:
            meter.check_arguments(name, (owner, *args, *kwargs.values()))
        return self.checked_text(super().call(context, obj, *args, **kwargs))


def _counted_items(values: Iterable[Any], meter: Meter) -> Iterator[Any]:
    size = 0
    for value in values:
        meter.count_turn()
        size += len(value) if isinstance(value, str) else 1
        meter.check_size(size)
        yield value


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
        self._sandbox.check_filter(self._name, (*values, *kwargs.values()))
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


@pass_environment
def _sum(
    environment: jinja2.Environment,
    values: Iterable[Any],
    attribute: str | int | None = None,
    start: Any = 0,  # noqa: ANN401
) -> Any:  # noqa: ANN401  # as jinja2's
    if not isinstance(start, list | tuple):
        return do_sum(environment, values, attribute, start)
    # Joined in one go: adding up lists one by one takes the square of their number.
    get = make_attrgetter(environment, attribute) if attribute is not None else (lambda value: value)
    return type(start)([*start, *(item for value in values for item in get(value))])


def _raise_exception(message: object) -> None:
    raise Refused(str(message))
