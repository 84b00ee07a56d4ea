"""Begins and ends the records of an application's requests, and gives them to who wants them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from prometheus_client import Counter

from llm_stack_server.observing.record import RequestRecord
from llm_stack_server.observing.trace_context import Sampler, trace_context_of
from llm_stack_server.request_id import request_id_for

Sink: TypeAlias = Callable[[RequestRecord], None]
"""Takes a record whose request has ended; must not block."""


class RequestJournal:
    """One application's.

    Attributes:
        sinks: Who gets the records.
        sampler: Decides which requests get spans; None: none does.
    """

    def __init__(self, outcomes: Counter) -> None:
        """Count ended requests in ``outcomes``, by route, outcome and error."""
        self.sinks: list[Sink] = []
        self.sampler: Sampler | None = None
        self._outcomes = outcomes

    def begin(self, method: str, headers: Sequence[tuple[bytes, bytes]]) -> RequestRecord:
        """The record of a request whose head has come."""
        return RequestRecord(
            request_id=request_id_for(headers).decode(),
            method=method,
            trace=trace_context_of(headers, self.sampler),
        )

    def end(self, record: RequestRecord) -> None:
        """The request has ended; called once."""
        record.end()
        self._outcomes.labels(record.route, record.outcome, record.error or "").inc()
        for sink in self.sinks:
            sink(record)
