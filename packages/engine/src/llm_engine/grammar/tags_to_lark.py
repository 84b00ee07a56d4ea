"""Writes structural tags in llguidance's Lark notation; knows nothing of how they are asked for.

A trigger ends a lexeme of free text at once (`lazy`), so that free text never runs past one.
"""

from __future__ import annotations

import json

from llguidance import regex_to_lark

from llm_engine.grammar.backend import InvalidGrammar
from llm_engine.grammar.date_formats import with_exact_formats
from llm_engine.grammar.structural_tags import (
    AnyText,
    Json,
    Node,
    Parts,
    Regex,
    Repeated,
    Separated,
    Tag,
    Text,
    Triggered,
)

_ANY = r"/(.|\n)*/"


def to_lark(node: Node, white_space: str) -> str:
    """A grammar of the node.

    Args:
        node: The whole structural tag.
        white_space: Regular expression of what may stand between two tokens of JSON.

    Raises:
        InvalidGrammar: Free text stands where nothing says how it ends.
    """
    writer = _Writer(white_space)
    start = writer.write(node, may_run_on=True)
    return "\n".join(["%llguidance {}", f"start: {start}", *writer.lines]) + "\n"


class _Writer:
    def __init__(self, white_space: str) -> None:
        self._white_space = white_space
        self.lines: list[str] = []
        self._names: dict[tuple[str, str], str] = {}

    def write(self, node: Node, *, may_run_on: bool) -> str:
        """An expression of the node; `may_run_on`: the output ends with it, so it may be free text."""
        match node:
            case Text(value):
                return _quoted(value)
            case Json(schema):
                guided = {
                    **with_exact_formats(schema),
                    "x-guidance": {"whitespace_pattern": self._white_space, "lenient": False},
                }
                return self._rule(f"%json {json.dumps(guided)}")
            case Regex(pattern):
                return self._lexeme(f"/{regex_to_lark(pattern, '')}/")
            case Parts(parts, either=True):
                return "(" + " | ".join(self.write(one, may_run_on=may_run_on) for one in parts) + ")"
            case Parts(parts):
                last = len(parts) - 1
                return " ".join(
                    self.write(one, may_run_on=may_run_on and place == last)
                    for place, one in enumerate(parts)
                )
            case Repeated(part, least, most):
                inner = self._rule(self.write(part, may_run_on=False))
                return f"{inner}{{{least},{'' if most is None else most}}}"
            case Tag():
                return self._tag(node, node.begin)
            case Separated():
                return self._separated(node)
            case Triggered() if may_run_on:
                return self._triggered(node)
            case AnyText() if may_run_on:
                return self._lexeme(_ANY)
        raise InvalidGrammar("free text must be the whole content of a tag, or stand at the end")

    def _tag(self, tag: Tag, begin: str) -> str:
        """A tag of which `begin` is still to be written."""
        ends = " | ".join(_quoted(end) or '""' for end in tag.ends)
        if isinstance(tag.content, AnyText):
            if not all(tag.ends):
                raise InvalidGrammar("a tag of free text needs an end")
            return f"{_quoted(begin)} {self._rule(f'{_ANY} ({ends})', '[lazy]')}"
        content = self.write(tag.content, may_run_on=False)
        behind = "" if tag.ends == ("",) else f"({ends})"
        return f"{_quoted(begin)} {content} {behind}"

    def _separated(self, node: Separated) -> str:
        one = self._rule(" | ".join(self._tag(tag, tag.begin) for tag in node.tags))
        more = "" if node.stop_after_first else f" ({_quoted(node.separator)} {one})*"
        return f"({one}{more})" + ("" if node.at_least_one else "?")

    def _triggered(self, node: Triggered) -> str:
        options: list[str] = []
        for trigger in node.triggers:
            head = self._rule(f"{_ANY} {_quoted(trigger)}", "[lazy]")
            tags = [tag for tag in node.tags if tag.begin.startswith(trigger)]
            tails = [self._tag(tag, tag.begin[len(trigger) :]) for tag in tags]
            options.append(f"{head} {self._rule(' | '.join(tails))}")
        one, rest = self._rule(" | ".join(options)), self._lexeme(_ANY)
        if node.stop_after_first:
            return one if node.at_least_one else f"({one} | {rest})"
        return f"{one}{'+' if node.at_least_one else '*'} {rest}"

    def _rule(self, body: str, attribute: str = "") -> str:
        return self._named("rule", attribute, body)

    def _lexeme(self, body: str) -> str:
        return self._named("LEXEME", "", body)

    def _named(self, kind: str, attribute: str, body: str) -> str:
        """The name of a rule; the same for the same, so that a schema is compiled once."""
        line = f"{attribute}: {body}"
        name = self._names.get((kind, line))
        if name is None:
            name = self._names[kind, line] = f"{kind}{len(self.lines)}"
            self.lines.append(name + line)
        return name


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False) if text else ""
