"""Structural tags: free text with constrained parts, read from either of their JSON forms.

The older form lists structures (`begin`, `schema`, `end`) and triggers. The newer one is a tree of formats.
Both become the same nodes here; how a back end enforces them is told elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from llm_engine.grammar.backend import InvalidGrammar
from llm_engine.grammar.schema_limits import checked_schema

_MAX_NODES = 1000
_MAX_DEPTH = 32


@dataclass(frozen=True, slots=True)
class Text:
    """Exactly this text."""

    value: str


@dataclass(frozen=True, slots=True)
class Json:
    """A JSON document of a schema."""

    schema: dict[str, object]


@dataclass(frozen=True, slots=True)
class Regex:
    """A text that a regular expression matches."""

    pattern: str


@dataclass(frozen=True, slots=True)
class AnyText:
    """Anything, up to the end of the tag that it stands in, or of the output."""


@dataclass(frozen=True, slots=True)
class Parts:
    """One after the other, or (`either`) one of them."""

    parts: tuple[Node, ...]
    either: bool = False


@dataclass(frozen=True, slots=True)
class Repeated:
    """A part from `least` to `most` times; None: without a limit."""

    part: Node
    least: int
    most: int | None


@dataclass(frozen=True, slots=True)
class Tag:
    """A text, a part, and one of some texts."""

    begin: str
    content: Node
    ends: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Triggered:
    """Free text; where a trigger is written, one of the tags that begin with it must follow."""

    triggers: tuple[str, ...]
    tags: tuple[Tag, ...]
    at_least_one: bool = False
    stop_after_first: bool = False


@dataclass(frozen=True, slots=True)
class Separated:
    """Tags and a text between them, nothing else."""

    tags: tuple[Tag, ...]
    separator: str
    at_least_one: bool = False
    stop_after_first: bool = False


Node: TypeAlias = Text | Json | Regex | AnyText | Parts | Repeated | Tag | Triggered | Separated


def parse_structural_tag(value: object) -> Node:
    """The nodes of `{"type": "structural_tag", ...}`.

    Raises:
        InvalidGrammar: The form is not known, or not kept; the message names the part.
    """
    if not isinstance(value, dict) or value.get("type") != "structural_tag":
        raise InvalidGrammar('a structural tag is an object of the type "structural_tag"')
    if ("format" in value) == ("structures" in value):
        raise InvalidGrammar("a structural tag has either a format, or structures and triggers")
    reader = _Reader()
    if "format" in value:
        reader.refuse_others(value, "", {"type", "format"})
        return reader.node(value["format"], "format", 0)
    reader.refuse_others(value, "", {"type", "structures", "triggers"})
    tags = [
        reader.old_tag(one, f"structures[{index}]")
        for index, one in enumerate(reader.items(value, "structures", ""))
    ]
    return reader.triggered(value, tags, "")


class _Reader:
    """Reads one structural tag, within a bound on its parts."""

    def __init__(self) -> None:
        self._num_nodes = 0
        self._kinds: dict[str, Callable[[Mapping[str, object], str, int], Node]] = {
            "const_string": self._const,
            "json_schema": self._json,
            "regex": self._regex,
            "any_text": self._any_text,
            "sequence": self._sequence,
            "or": self._or,
            "optional": lambda value, path, depth: self._repeated(value, path, depth, 0, 1),
            "plus": lambda value, path, depth: self._repeated(value, path, depth, 1, None),
            "star": lambda value, path, depth: self._repeated(value, path, depth, 0, None),
            "repeat": self._repeat,
            "tag": self.tag,
            "triggered_tags": self._triggered_tags,
            "tags_with_separator": self._tags_with_separator,
        }

    def node(self, value: object, path: str, depth: int) -> Node:
        """A format of the newer form."""
        self._num_nodes += 1
        if self._num_nodes > _MAX_NODES or depth > _MAX_DEPTH:
            raise InvalidGrammar(f"{path}: at most {_MAX_NODES} formats, nested at most {_MAX_DEPTH} deep")
        if not isinstance(value, dict):
            raise InvalidGrammar(f"{path}: a format is an object")
        kind = value.get("type")
        read = self._kinds.get(kind) if isinstance(kind, str) else None
        if read is None:
            known = ", ".join(self._kinds)
            raise InvalidGrammar(f"{path}.type: {str(kind)[:40]!r} is not supported; {known} are")
        return read(value, path, depth)

    def tag(self, value: Mapping[str, object], path: str, depth: int) -> Tag:
        """A tag of the newer form."""
        self.refuse_others(value, path, {"type", "begin", "content", "end"})
        begin, end = self._text(value, "begin", path), value.get("end")
        ends = [one for one in (end if isinstance(end, list) else [end]) if isinstance(one, str)]
        if not ends or (isinstance(end, list) and len(ends) < len(end)):
            raise InvalidGrammar(f"{path}.end: a string or a list of strings")
        return Tag(begin, self.node(value.get("content"), f"{path}.content", depth + 1), tuple(ends))

    def old_tag(self, value: object, path: str) -> Tag:
        """A structure of the older form."""
        self._num_nodes += 1
        if self._num_nodes > _MAX_NODES:
            raise InvalidGrammar(f"structures: at most {_MAX_NODES}")
        if not isinstance(value, dict):
            raise InvalidGrammar(f"{path}: a structure is an object")
        self.refuse_others(value, path, {"begin", "schema", "end"})
        schema = self._schema(value.get("schema", True), f"{path}.schema")
        return Tag(self._text(value, "begin", path), Json(schema), (self._text(value, "end", path),))

    def triggered(self, value: Mapping[str, object], tags: Sequence[Tag], path: str) -> Triggered:
        """Tags and what triggers them."""
        triggers = self.items(value, "triggers", path)
        here = f"{path}.triggers".lstrip(".")
        if not all(isinstance(one, str) and one for one in triggers):
            raise InvalidGrammar(f"{here}: a list of strings, none of them empty")
        texts = [str(one) for one in triggers]
        for tag in tags:
            if sum(tag.begin.startswith(trigger) for trigger in texts) != 1:
                raise InvalidGrammar(f"{here}: exactly one must be the beginning of {tag.begin[:40]!r}")
        for trigger in texts:
            if not any(tag.begin.startswith(trigger) for tag in tags):
                raise InvalidGrammar(f"{here}: no tag begins with {trigger[:40]!r}")
            if any(other != trigger and trigger in other for other in texts) or texts.count(trigger) > 1:
                raise InvalidGrammar(f"{here}: {trigger[:40]!r} is within another")
        return Triggered(
            tuple(texts),
            tuple(tags),
            self._flag(value, "at_least_one"),
            self._flag(value, "stop_after_first"),
        )

    def items(self, value: Mapping[str, object], name: str, path: str) -> list[object]:
        """A list that is not empty."""
        found = value.get(name)
        if not isinstance(found, list) or not found:
            raise InvalidGrammar(f"{path}.{name}: a list, not an empty one".lstrip("."))
        return found

    def refuse_others(self, value: Mapping[str, object], path: str, known: set[str]) -> None:
        """Refuse fields that would be passed over; those that ask for nothing pass."""
        for name, one in value.items():
            if name not in known and one not in (None, [], False):
                raise InvalidGrammar(f"{path}.{str(name)[:40]}: not supported".lstrip("."))

    # Kinds

    def _const(self, value: Mapping[str, object], path: str, _depth: int) -> Text:
        self.refuse_others(value, path, {"type", "value"})
        return Text(self._text(value, "value", path))

    def _json(self, value: Mapping[str, object], path: str, _depth: int) -> Json:
        self.refuse_others(value, path, {"type", "json_schema", "style"})
        if value.get("style", "json") != "json":
            raise InvalidGrammar(f"{path}.style: only 'json' is supported")
        return Json(self._schema(value.get("json_schema"), f"{path}.json_schema"))

    def _regex(self, value: Mapping[str, object], path: str, _depth: int) -> Regex:
        self.refuse_others(value, path, {"type", "pattern"})
        return Regex(self._text(value, "pattern", path))

    def _any_text(self, value: Mapping[str, object], path: str, _depth: int) -> AnyText:
        self.refuse_others(value, path, {"type"})
        return AnyText()

    def _sequence(self, value: Mapping[str, object], path: str, depth: int) -> Parts:
        return Parts(self._elements(value, path, depth))

    def _or(self, value: Mapping[str, object], path: str, depth: int) -> Parts:
        return Parts(self._elements(value, path, depth), either=True)

    def _elements(self, value: Mapping[str, object], path: str, depth: int) -> tuple[Node, ...]:
        self.refuse_others(value, path, {"type", "elements"})
        return tuple(
            self.node(one, f"{path}.elements[{index}]", depth + 1)
            for index, one in enumerate(self.items(value, "elements", path))
        )

    def _repeated(
        self, value: Mapping[str, object], path: str, depth: int, least: int, most: int | None
    ) -> Repeated:
        self.refuse_others(value, path, {"type", "content"})
        return Repeated(self.node(value.get("content"), f"{path}.content", depth + 1), least, most)

    def _repeat(self, value: Mapping[str, object], path: str, depth: int) -> Repeated:
        self.refuse_others(value, path, {"type", "content", "min", "max"})
        least, most = value.get("min"), value.get("max")
        if not isinstance(least, int) or not isinstance(most, int) or not 0 <= least <= _MAX_NODES:
            raise InvalidGrammar(f"{path}.min and {path}.max: numbers up to {_MAX_NODES}")
        if most != -1 and not max(1, least) <= most <= _MAX_NODES:
            raise InvalidGrammar(f"{path}.max: -1, or from min to {_MAX_NODES}")
        content = self.node(value.get("content"), f"{path}.content", depth + 1)
        return Repeated(content, least, None if most == -1 else most)

    def _triggered_tags(self, value: Mapping[str, object], path: str, depth: int) -> Triggered:
        known = {"type", "triggers", "tags", "at_least_one", "stop_after_first"}
        self.refuse_others(value, path, known)
        return self.triggered(value, self._tags(value, path, depth), path)

    def _tags_with_separator(self, value: Mapping[str, object], path: str, depth: int) -> Separated:
        known = {"type", "tags", "separator", "at_least_one", "stop_after_first"}
        self.refuse_others(value, path, known)
        separator = value.get("separator")
        if not isinstance(separator, str):
            raise InvalidGrammar(f"{path}.separator: a string")
        return Separated(
            self._tags(value, path, depth),
            separator,
            self._flag(value, "at_least_one"),
            self._flag(value, "stop_after_first"),
        )

    def _tags(self, value: Mapping[str, object], path: str, depth: int) -> tuple[Tag, ...]:
        tags: list[Tag] = []
        for index, one in enumerate(self.items(value, "tags", path)):
            here = f"{path}.tags[{index}]"
            typed = {"type": "tag", **one} if isinstance(one, dict) else one
            found = self.node(typed, here, depth + 1)
            if not isinstance(found, Tag):
                raise InvalidGrammar(f"{here}: a tag")
            tags.append(found)
        return tuple(tags)

    # Values

    def _text(self, value: Mapping[str, object], name: str, path: str) -> str:
        found = value.get(name)
        if not isinstance(found, str) or (not found and name in ("begin", "value")):
            raise InvalidGrammar(f"{path}.{name}: a string" + ("" if name == "end" else ", not an empty one"))
        return found

    def _schema(self, value: object, path: str) -> dict[str, object]:
        try:
            return checked_schema(value)
        except InvalidGrammar as error:
            raise InvalidGrammar(f"{path}: {error}") from None

    def _flag(self, value: Mapping[str, object], name: str) -> bool:
        found = value.get(name, False)
        if not isinstance(found, bool):
            raise InvalidGrammar(f"{name}: true or false")
        return found
