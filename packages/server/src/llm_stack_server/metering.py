"""Measures one request's work in the engine, for the metrics and for its record. Knows no answer formats."""

from __future__ import annotations

import time
from collections.abc import Callable

from llm_engine.sampling_params import SamplingParams
from starlette.requests import Request

from llm_stack_server.context import context_of
from llm_stack_server.generation import Usage
from llm_stack_server.metrics import Metrics
from llm_stack_server.observing.record import RequestRecord, record_of


class RequestMeter:
    """Measures one generation. Implements `generation.Observer`."""

    def __init__(
        self,
        metrics: Metrics,
        route: str,
        record: RequestRecord | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """Start the clock.

        Args:
            metrics: Where it is shown.
            route: As what it is counted.
            record: The request's; it may have several generations, one after the other.
            clock: In seconds; the record's, where there is one.
        """
        self._metrics = metrics
        self._route = route
        self._record = record
        self._clock = clock
        self._itl = metrics.itl.labels(route)  # looked up once: it is used for each token
        self._start_s = clock()
        self._admitted_s: float | None = None
        self._engine_queue_s = 0.0
        self._last_s: dict[int, float] = {}
        if record is not None and record.submitted_s is None:
            record.submitted_s = self._start_s

    def admitted(self) -> None:
        """Note that the server's queue let it in."""
        self._admitted_s = self._clock()
        if self._record is not None and self._record.admitted_s is None:
            self._record.admitted_s = self._admitted_s

    def begun(self, queue_s: float) -> None:
        """Note that a prompt's first step came, after ``queue_s`` in the engine's queue."""
        self._engine_queue_s = max(self._engine_queue_s, queue_s)

    def tokens(self, choice: int, count: int) -> None:
        """Note ``count`` new tokens of a choice; tokens that come together share their gap."""
        now_s = self._clock()
        last_s = self._last_s.get(choice)
        if last_s is not None:
            self._itl.observe((now_s - last_s) / count, count)
        elif not self._last_s:
            self._first_token(now_s)
        self._last_s[choice] = now_s

    def choice_finished(self, reason: str) -> None:
        """Note the end of a choice."""
        if self._record is not None:
            self._record.finish_reasons.append(reason)

    def finished(self, outcome: str, usage: Usage) -> None:
        """Note the end of the generation, whose own tokens ``usage`` counts."""
        now_s = self._clock()
        metrics, route = self._metrics, self._route
        metrics.requests.labels(route, outcome).inc()
        metrics.e2e.labels(route).observe(now_s - self._start_s)
        metrics.prompt_tokens.labels(route).observe(usage.prompt_tokens)
        metrics.output_tokens.labels(route).observe(usage.completion_tokens)
        if self._admitted_s is not None and self._last_s:
            queue_s = self._admitted_s - self._start_s + self._engine_queue_s
            metrics.queue.labels(route).observe(queue_s)
        record = self._record
        if record is not None:
            record.generated_s = now_s
            record.prompt_tokens += usage.prompt_tokens
            record.cached_tokens += usage.cached_tokens
            record.output_tokens += usage.completion_tokens

    def _first_token(self, now_s: float) -> None:
        self._metrics.ttft.labels(self._route).observe(now_s - self._start_s)
        record = self._record
        if record is not None and record.first_token_s is None:
            record.first_token_s = now_s
            record.engine_queue_s = self._engine_queue_s


def meter_of(request: Request, route: str, model: str, params: SamplingParams | None = None) -> RequestMeter:
    """The meter of a checked request.

    Args:
        request: The HTTP request.
        route: Its path.
        model: The served name of the model.
        params: What is asked of it; None where nothing is generated.
    """
    record = record_of(request.scope)
    if record is not None:
        record.asks(model, params)
    return RequestMeter(context_of(request).metrics, route, record)
