"""The simulator's own trace format, one JSON object a line; knows nothing of other formats.

Fields of a line, all but two with a default:

    arrival_s       seconds from the start of the trace; with `after`, seconds after the end of that request
    prompt_tokens   length of the prompt; with `continues`, of what is new in it
    token_ids       instead of prompt_tokens: the ids themselves
    output_tokens   tokens it generates
    max_tokens      declared limit, at least output_tokens (the default)
    tenant, priority, deadline_s (seconds after arrival)
    salt            requests of different salts share no blocks
    prefix_group    name of a shared prefix, of prefix_tokens tokens, at the begin of the prompt
    shared          instead of prefix_group: list of [name, tokens], the contents the prompt begins with
    id, after       a name of this request; the id of an earlier one whose end starts this one
    continues       true where the prompt begins with the prompt and the output of `after`

Needed are output_tokens and one of prompt_tokens and token_ids.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TypeVar

import numpy as np

from llm_scheduler.plan import Int32
from llm_scheduler.sim.errors import InvalidField, TraceError
from llm_scheduler.sim.trace_lines import numbered_lines
from llm_scheduler.sim.workload import RequestSpec, Workload

_PROMPT_FIELDS = {"prompt_tokens", "token_ids", "prefix_group", "prefix_tokens", "shared"}
_ORDER_FIELDS = {"arrival_s", "id", "after", "continues"}
_OTHER_FIELDS = {"output_tokens", "max_tokens", "tenant", "priority", "deadline_s", "salt"}
_FIELDS = frozenset(_PROMPT_FIELDS | _ORDER_FIELDS | _OTHER_FIELDS)
_T = TypeVar("_T")


def read_json_trace(path: str | Path) -> Iterator[RequestSpec]:
    """Read a trace in the simulator's own format.

    Raises:
        TraceError: The file cannot be read, or a line is malformed; it names line and field.
    """
    index_of: dict[str, int] = {}
    for index, (number, line) in enumerate(numbered_lines(path)):
        fields = _Line(str(path), number, line)
        after = fields.text("after")
        if after is not None and after not in index_of:
            raise fields.error("after", f"no earlier line has the id {after!r}")
        yield fields.spec(None if after is None else index_of[after])
        name = fields.text("id")
        if name is not None and name in index_of:
            raise fields.error("id", f"{name!r} is the id of an earlier line")
        index_of[str(index) if name is None else name] = index


def write_json_trace(path: str | Path, workload: Workload) -> None:
    """Write a workload so that ``read_json_trace`` gives the same one."""
    with Path(path).open("w", encoding="utf-8") as file:
        file.writelines(_lines(workload))


def _lines(workload: Workload) -> Iterable[str]:
    referred = set(workload.after.tolist())
    for index in range(len(workload)):
        spec = workload.spec(index)
        line: dict[str, object] = {"arrival_s": spec.arrival_s}
        if spec.token_ids is None:
            line["prompt_tokens"] = spec.prompt_tokens
        else:
            line["token_ids"] = spec.token_ids.tolist()
        line["output_tokens"] = spec.output_tokens
        optional: dict[str, object] = {
            "max_tokens": spec.max_tokens,
            "tenant": spec.tenant or None,
            "priority": spec.priority or None,
            "deadline_s": spec.deadline_s,
            "salt": spec.salt,
            "shared": [list(part) for part in spec.shared] or None,
            "id": str(index) if index in referred else None,
            "after": None if spec.after is None else str(spec.after),
            "continues": spec.continues or None,
        }
        line.update((name, value) for name, value in optional.items() if value is not None)
        yield json.dumps(line) + "\n"


class _Line:
    """One line as an object whose fields are checked as they are asked for."""

    def __init__(self, path: str, number: int, line: str) -> None:
        self._path = path
        self._number = number
        try:
            found: object = json.loads(line)
        except ValueError as error:
            raise self.error("", f"no JSON: {error}") from error
        if not isinstance(found, dict):
            raise self.error("", "expected an object")
        for name in found:
            if name not in _FIELDS:
                raise self.error(str(name), f"no such field; there are {', '.join(sorted(_FIELDS))}")
        self._fields: Mapping[str, object] = found

    def error(self, field: str, message: str) -> TraceError:
        return TraceError(self._path, self._number, field, message)

    def spec(self, after: int | None) -> RequestSpec:
        token_ids = self._token_ids()
        prompt_tokens = self._integer("prompt_tokens", None if token_ids is None else len(token_ids))
        try:
            return RequestSpec(
                prompt_tokens=prompt_tokens,
                output_tokens=self._integer("output_tokens", None),
                arrival_s=self._number_of("arrival_s", 0.0),
                token_ids=token_ids,
                shared=self._shared(),
                max_tokens=self._integer("max_tokens", 0) or None,
                tenant=self.text("tenant") or "",
                priority=self._integer("priority", 0),
                deadline_s=self._number_of("deadline_s", 0.0) if "deadline_s" in self._fields else None,
                after=after,
                salt=self.text("salt"),
                continues=self._typed("continues", bool, "true or false") or False,
            )
        except InvalidField as error:
            raise self.error(error.field, error.message) from error

    def text(self, field: str) -> str | None:
        return self._typed(field, str, "a string")

    def _typed(self, field: str, kind: type[_T], expected: str) -> _T | None:
        value = self._fields.get(field)
        if value is not None and not isinstance(value, kind):
            raise self.error(field, f"expected {expected}, got {value!r}")
        return value

    def _integer(self, field: str, default: int | None) -> int:
        value = self._fields.get(field, default)
        if value is None:
            raise self.error(field, "is missing")
        if isinstance(value, bool) or not isinstance(value, int) or abs(value) >= 2**31:
            raise self.error(field, f"expected an integer below 2**31, got {value!r}")
        return value

    def _number_of(self, field: str, default: float) -> float:
        value = self._fields.get(field, default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.error(field, f"expected a number, got {value!r}")
        return float(value)

    def _token_ids(self) -> Int32 | None:
        ids = self._typed("token_ids", list, "a list of token ids")
        if ids is None:
            return None
        if not all(type(token) is int and 0 <= token < 2**31 for token in ids):
            raise self.error("token_ids", "expected integers from 0 to 2**31 - 1")
        return np.array(ids, np.int32)

    def _shared(self) -> tuple[tuple[str, int], ...]:
        group = self.text("prefix_group")
        parts = self._typed("shared", list, "a list of [name, tokens]") or []
        if group is not None:
            if parts:
                raise self.error("shared", "expected prefix_group or shared, not both")
            return ((group, self._integer("prefix_tokens", None)),)
        for part in parts:
            if not isinstance(part, list) or [type(value) for value in part] != [str, int]:
                raise self.error("shared", f"expected [name, tokens], got {part!r}")
        return tuple((name, tokens) for name, tokens in parts)
