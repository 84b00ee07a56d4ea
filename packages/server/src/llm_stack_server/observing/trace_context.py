"""The ids under which a request is traced: from its client's ``traceparent``, or new. Knows no exporter."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass

_HEADER = b"traceparent"
_TRACEPARENT = re.compile(rb"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_SAMPLED = 1
_ID_SPACE = 2**64


@dataclass(frozen=True, slots=True)
class TraceContext:
    """A request's place in a trace, by the W3C's Trace Context.

    Attributes:
        trace_id: 32 hexadecimal digits.
        parent_id: The client's span, 16 hexadecimal digits; None where the trace begins here.
        span_id: The request's own span; None where it gets none.
    """

    trace_id: str
    parent_id: str | None = None
    span_id: str | None = None


class Sampler:
    """Decides which requests get a span: as the client has decided, or else a share of the traces."""

    def __init__(self, ratio: float) -> None:
        """Sample ``ratio`` (0 to 1) of the traces that begin here; by trace id, so that servers agree."""
        self._bound = round(ratio * _ID_SPACE)

    def sample(self, parent: TraceContext | None, *, is_sampled: bool) -> TraceContext:
        """The context of a request whose client sent ``parent``, if any, and said whether it is sampled."""
        trace_id = os.urandom(16).hex() if parent is None else parent.trace_id
        if parent is None:
            is_sampled = int(trace_id[16:], 16) < self._bound
        parent_id = None if parent is None else parent.parent_id
        return TraceContext(trace_id, parent_id, os.urandom(8).hex() if is_sampled else None)


def trace_context_of(headers: Iterable[tuple[bytes, bytes]], sampler: Sampler | None) -> TraceContext | None:
    """The context of a request.

    Args:
        headers: Its headers, names in small letters.
        sampler: None where no spans are made: then it is the client's context, or None.
    """
    given = next((value for name, value in headers if name == _HEADER), None)
    parent, is_sampled = None, False
    if given is not None and (found := _TRACEPARENT.fullmatch(given)) is not None:
        version, trace_id, parent_id, flags, more = found.groups()
        is_valid = version != b"ff" and (version != b"00" or more is None)
        if is_valid and int(trace_id, 16) and int(parent_id, 16):
            parent = TraceContext(trace_id.decode(), parent_id.decode())
            is_sampled = bool(int(flags, 16) & _SAMPLED)
    return parent if sampler is None else sampler.sample(parent, is_sampled=is_sampled)
