"""Owns the step loop: intake, plan, execute, update; knows nothing of text, sockets or devices.

`step` runs one of two loops that bring the same tokens: the plain one waits for the device before it plans
on; the overlapped one plans step N + 1 and hands it over while the device runs step N.
"""

import logging
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, TypeAlias

import numpy as np
from llm_distributed import CallFailed, Executor, PendingResult, StepFailed
from llm_kvcache import KVCache
from llm_scheduler import (
    Busy,
    DuplicateRequest,
    InvalidResult,
    NeverFits,
    Request,
    RowOutput,
    Scheduler,
    StepPlan,
    StepResult,
)
from llm_scheduler import InvalidRequest as InvalidSchedulerRequest

from llm_engine.core.counters import Counters
from llm_engine.core.grammar_waits import WAITS_FOR, GrammarWaits
from llm_engine.core.messages import Abort, AddRequest, CoreInfo, Refusal, Row, StepOutputs
from llm_engine.core.prefix_pins import PrefixPins
from llm_engine.core.queue_times import QueueTimes
from llm_engine.errors import EngineDead
from llm_engine.grammar.spec import GrammarSpec
from llm_engine.stats import EngineStats

_LOG = logging.getLogger(__name__)
_MAX_FAILED_STEPS_IN_A_ROW = 8

Submitted: TypeAlias = tuple[StepPlan, PendingResult[StepResult]]


class EngineCore:
    """One engine: requests go in, each step brings outputs.

    Not thread-safe: one loop owns it. A step that raises ends only the requests in it.

    Args:
        scheduler: Plans the steps.
        cache: The blocks that the scheduler gives out.
        executor: Started, its workers loaded.
        info: What the front end is told.
        pins: Keeps beginnings of prompts in the cache; None: it is asked to keep none.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        cache: KVCache,
        executor: Executor,
        info: CoreInfo,
        pins: PrefixPins | None = None,
    ) -> None:
        self.info = info
        self._scheduler = scheduler
        self._cache = cache
        self._pins = pins
        self._pin_wishes: dict[str, AddRequest] = {}
        self._executor = executor
        self._counters = Counters()
        self._queue_times = QueueTimes()
        self._grammars = GrammarWaits(executor)
        # Beyond the protocol: a scheduler without it makes the loop wait for grammars.
        self._ready: Callable[[str, str], bool] | None = getattr(scheduler, "ready", None)
        self._prepared_grammars = info.tokenizer_path is None
        self._refusals: list[Refusal] = []
        self._in_flight: Submitted | None = None
        self._failed_in_a_row = 0
        self._made_progress = False
        self._ran_since_idle = False
        self._on_plan: Callable[[StepPlan], None] | None = None

    def intake(self, messages: Iterable[AddRequest | Abort]) -> None:
        """Queue and abort requests, in order. Refusals are told with the next step's outputs."""
        for message in messages:
            if isinstance(message, AddRequest):
                self._add(message)
            else:
                self._scheduler.abort(message.request_ids)
                self._grammars.end(message.request_ids)
                self._forget(message.request_ids)

    def watch_plans(self, on_plan: Callable[[StepPlan], None]) -> None:
        """Have each plan told before it is handed over."""
        self._on_plan = on_plan

    def has_work(self) -> bool:
        """Tell whether `step` has something to do or to tell."""
        return self._scheduler.has_work() or bool(self._refusals)

    def step(self) -> StepOutputs:
        """Run one step.

        Returns:
            What it brought; empty when nothing could run, or when the first overlapped step was handed over.

        Raises:
            WorkerDied: A rank has ended; the core cannot go on.
            EngineDead: Step after step failed; the core cannot go on.
        """
        clock = self._counters.clock
        clock.begin()
        self._ran_since_idle = True
        self._take_grammars()
        outputs = self._step_overlapped() if self.info.overlap else self._step_plain()
        refusals, self._refusals = self._refusals, []
        pinned = self._keep_prefixes(outputs)
        rows = [
            _to_row(output, pinned.get(output.request_id, []), self._queue_times.take(output.request_id))
            for output in outputs
        ]
        step = StepOutputs(rows=rows, refusals=refusals)
        clock.lap("result")
        clock.end(work_left=self._in_flight is not None or self._scheduler.has_work())
        return step

    @property
    def made_progress(self) -> bool:
        """False when the last step neither handed a plan over nor took a result in."""
        return self._made_progress

    def stats(self, *, check_cache: bool = False) -> EngineStats:
        """A snapshot of all counters; with `check_cache` after a check of the KV cache.

        Raises:
            InvariantError: The cache's state contradicts itself.
        """
        if self._pins is not None:
            self._pins.tick(time.monotonic(), at_once=True)
        if check_cache:
            self._cache.check()
        worker_steps: dict[str, int] = self._executor.call("step_counts")[0]
        return self._counters.snapshot(self._scheduler, self._cache, worker_steps)

    def check_grammars(self, specs: Sequence[GrammarSpec]) -> list[str | None]:
        """Compile grammars and wait for them, while no request is live; why each failed, or None."""
        return self._grammars.check(specs)

    def call(self, method: str, *args: Any) -> Any:  # noqa: ANN401 - any method of the worker
        """Call a method of the worker on every rank, between steps, and return the first's result.

        Raises:
            CallFailed: It raised.
        """
        return self._executor.call(method, *args)[0]

    def use_idle_time(self) -> bool:
        """Do something for later steps, while there is no work: capture one graph that was missed.

        The first time it has the workers prepare for grammars, in a thread of theirs.

        Returns:
            Whether there may be more to do.
        """
        if not self._prepared_grammars:
            self._prepared_grammars = True
            try:
                self.call("prepare_grammars")
            except CallFailed as error:
                _LOG.warning("nothing was prepared for grammars: %s", _first_line(error))
            return True
        if not self._ran_since_idle or self._in_flight is not None:
            return False
        try:
            self._ran_since_idle = bool(self.call("capture_one"))
        except CallFailed as error:
            _LOG.warning("nothing was captured while idle: %s", _first_line(error))
            self._ran_since_idle = False
        return self._ran_since_idle

    def shutdown(self) -> None:
        """Stop the workers. Live requests are dropped."""
        self._executor.shutdown()

    # The two loops

    def _step_plain(self) -> list[RowOutput]:
        plan = self._plan()
        self._made_progress = plan is not None
        if plan is None:
            return []
        return self._finish(plan, self._submit(plan))

    def _step_overlapped(self) -> list[RowOutput]:
        plan = self._plan()
        ahead = None if plan is None else (plan, self._submit(plan))
        self._made_progress = ahead is not None or self._in_flight is not None
        before, self._in_flight = self._in_flight, ahead
        return [] if before is None else self._finish(*before)

    def _plan(self) -> StepPlan | None:
        if self._pins is not None:
            self._pins.tick(time.monotonic())
        plan = self._scheduler.schedule()
        while plan is None and self._pins_are_in_the_way():
            plan = self._scheduler.schedule()
        if plan is not None and plan.admitted:
            self._queue_times.admitted(plan.admitted, time.monotonic())
        self._counters.clock.lap("plan")
        return plan

    def _submit(self, plan: StepPlan) -> PendingResult[StepResult]:
        """Hand a plan over. A CPU runs it here and now, which is the device's time and not the host's."""
        if self._in_flight is not None and self._in_flight[1].done():
            self._counters.late_steps += 1
        if self._on_plan is not None:
            self._on_plan(plan)
        pending: PendingResult[StepResult] = self._executor.submit(plan)
        self._counters.clock.lap("wait" if self.info.device == "cpu" else "launch")
        return pending

    def _finish(self, plan: StepPlan, pending: PendingResult[StepResult]) -> list[RowOutput]:
        """Wait for a plan's result and take it in; a step that raised ends its requests, no others."""
        try:
            outputs = self._scheduler.update(plan, self._wait(pending))
            self._failed_in_a_row = 0
        except (StepFailed, InvalidResult) as error:
            _LOG.exception("step %d failed; its %d requests end with an error", plan.step_id, plan.num_rows)
            outputs = self._scheduler.fail(plan, f"the step failed: {_first_line(error)}")
            self._count_failure(error)
        self._counters.count_outputs(outputs)
        self._grammars.end(output.request_id for output in outputs if output.finish_reason or output.error)
        return outputs

    def _count_failure(self, error: Exception) -> None:
        """A device that is lost fails every step: then the core must end, not fail request after request."""
        self._counters.failed_steps += 1
        self._failed_in_a_row += 1
        if self._failed_in_a_row >= _MAX_FAILED_STEPS_IN_A_ROW:
            raise EngineDead(
                f"{self._failed_in_a_row} steps in a row failed: {_first_line(error)}"
            ) from error

    def _wait(self, pending: PendingResult[StepResult]) -> StepResult:
        try:
            return pending.result()
        finally:
            self._counters.clock.lap("wait")

    # Pins

    def _keep_prefixes(self, outputs: Sequence[RowOutput]) -> dict[str, list[int]]:
        """Pin what requests asked for whose prompts have been computed now; by request, the tokens kept."""
        if not self._pin_wishes:
            return {}
        kept = {}
        for output in outputs:
            message = self._pin_wishes.pop(output.request_id, None)
            if message is None or self._pins is None or not output.tokens:
                continue
            kept[output.request_id] = self._pins.keep(
                np.frombuffer(message.token_ids, "<i4"),
                message.cache_pins,
                salt=message.salt,
                tenant=message.tenant,
                now_s=time.monotonic(),
            )
        return kept

    def _pins_are_in_the_way(self) -> bool:
        """Lift a pin where requests wait, nothing runs, and nothing but pins can be what they wait for."""
        if not self._pins or self._in_flight is not None or not self._scheduler.has_work():
            return False
        return not self._grammars.is_waiting and self._pins.lift_one()

    def _forget(self, request_ids: Collection[str]) -> None:
        self._queue_times.forget(request_ids)
        if self._pin_wishes:
            for request_id in request_ids:
                self._pin_wishes.pop(request_id, None)

    # Grammars

    def _take_grammars(self) -> None:
        """Let requests run whose grammars were compiled, and refuse those whose cannot be."""
        for request_id, fault in self._grammars.finished():
            if fault is None:
                if self._ready is not None:
                    self._ready(request_id, WAITS_FOR)
                continue
            self._scheduler.abort([request_id])
            self._grammars.end([request_id])
            self._forget([request_id])
            self._refusals.append(Refusal(request_id=request_id, message=fault, field="grammar"))

    # Intake

    def _add(self, message: AddRequest) -> None:
        grammar = message.params.grammar
        request = Request(
            request_id=message.request_id,
            token_ids=np.frombuffer(message.token_ids, "<i4"),
            max_tokens=message.max_tokens,
            min_tokens=message.min_tokens,
            stop_token_ids=frozenset(message.stop_token_ids),
            priority=message.priority,
            arrival_s=time.monotonic(),
            tenant=message.tenant,
            salt=message.salt,
            match_prefix=message.match_prefix,
            waits_for=frozenset() if grammar is None or self._ready is None else frozenset({WAITS_FOR}),
            output_token_ids=tuple(np.frombuffer(message.output_ids, "<i4").tolist()),
            payload=message.params,
        )
        if grammar is not None and self._ready is None:
            fault = self._grammars.wait(request.request_id, grammar)
            if fault is not None:
                self._refuse(request, fault, field="grammar")
                return
        try:
            self._scheduler.add(request)
        except Busy as error:
            self._refuse(request, str(error), retry_after_s=error.retry_after_s)
        except NeverFits as error:
            self._refuse(request, str(error), field="max_tokens")
        except InvalidSchedulerRequest as error:
            self._refuse(request, error.message, field=error.field)
        except DuplicateRequest as error:
            self._refuse(request, str(error), field="request_id")
        else:
            self._counters.requests_added += 1
            self._counters.prompt_tokens += len(request.token_ids)
            self._queue_times.arrived(request.request_id, request.arrival_s)
            if message.cache_pins and self._pins is not None:
                self._pin_wishes[request.request_id] = message
            if grammar is not None and self._ready is not None:
                self._grammars.add(request.request_id, grammar)

    def _refuse(
        self, request: Request, message: str, *, field: str = "", retry_after_s: float | None = None
    ) -> None:
        self._counters.requests_refused += 1
        self._grammars.end([request.request_id])
        self._refusals.append(
            Refusal(request_id=request.request_id, message=message, field=field, retry_after_s=retry_after_s)
        )


def _to_row(output: RowOutput, pinned_tokens: list[int], queue_s: float) -> Row:
    return Row(
        request_id=output.request_id,
        tokens=output.tokens,
        finish_reason=output.finish_reason,
        stop_token=output.stop_token,
        num_cached_tokens=output.num_cached_tokens,
        # The scheduler passes through what the worker made, without knowing its type.
        logprobs=output.logprobs,  # type: ignore[arg-type]
        prompt_logprobs=output.prompt_logprobs,  # type: ignore[arg-type]
        error=output.error,
        pinned_tokens=pinned_tokens,
        queue_s=queue_s,
    )


def _first_line(error: BaseException) -> str:
    return (str(error) or type(error).__name__).splitlines()[0]
