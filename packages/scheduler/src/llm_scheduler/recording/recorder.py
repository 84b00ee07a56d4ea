"""Records every call of a live scheduler; knows nothing of what the calls mean."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import ClassVar, TypeVar

from llm_kvcache import KVCache

from llm_scheduler.config import SchedulerConfig
from llm_scheduler.loading import find_scheduler
from llm_scheduler.plan import RowOutput, StepPlan, StepResult
from llm_scheduler.protocol import API_VERSION
from llm_scheduler.recording.clock import HeldClock, make_with_clock
from llm_scheduler.recording.errors import Unrecordable
from llm_scheduler.recording.header import Header, installed_packages, now_s
from llm_scheduler.recording.values import Json, encode, is_default, plain
from llm_scheduler.recording.writer import RecordWriter
from llm_scheduler.request import Request
from llm_scheduler.stats import SchedulerStats

_T = TypeVar("_T")
_OPAQUE = ("logprobs", "prompt_logprobs")


class RecordingScheduler:
    """A scheduler that records what the one inside it is asked and answers.

    It keeps the same protocol, and passes on whatever else the scheduler inside offers: calls of further
    public methods are recorded by name. The inner scheduler is made here, so that its clock can be recorded:
    each call sees one time from beginning to end. Payloads and the contents of logprobs are not recorded.

    Writing never raises; see ``RecordWriter``. Work that others do on the cache is not seen.

    Args:
        path: The file; compressed where it ends in ``.gz``.
        scheduler: A name as for ``load_scheduler``, a class, or a factory that takes ``(config, cache)``.
        config: Passed on.
        cache: Passed on; must be new.
        cache_options: The keyword arguments that the cache was made with.
        clock: Seconds, where the scheduler takes a clock.

    Raises:
        OSError: The file cannot be opened.
        SchedulerNotFound, IncompatibleScheduler: The name leads to no scheduler.
    """

    API_VERSION: ClassVar[int] = API_VERSION

    def __init__(
        self,
        path: str | Path,
        scheduler: str | Callable[..., object],
        config: SchedulerConfig,
        cache: KVCache,
        *,
        cache_options: Mapping[str, object] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        factory = find_scheduler(scheduler) if isinstance(scheduler, str) else scheduler
        self._source = clock
        self._clock = HeldClock(clock)
        self._inner, has_clock = make_with_clock(factory, config, cache, self._clock)
        self._started_s: dict[int, float] = {}
        self._landed_s = float("-inf")
        header = Header(
            scheduler=scheduler if isinstance(scheduler, str) else _path_of(scheduler),
            config=config,
            groups=cache.groups,
            num_blocks=cache.num_blocks,
            cache_options=cache_options or {},
            has_clock=has_clock,
            packages=installed_packages(),
            started_at_s=now_s(),
        ).to_json()
        self._writer = RecordWriter(path)
        self._writer.write(header)

    @property
    def is_recording(self) -> bool:
        """Whether the record is still written."""
        return self._writer.is_open

    def close(self) -> None:
        """End the record; the scheduler goes on. Safe to call twice."""
        self._writer.close()

    # The protocol

    def add(self, request: Request) -> None:
        """Queue a request; see ``Scheduler.add``."""
        self._call("add", _request_entry(request), lambda: self._inner.add(request))

    def abort(self, request_ids: Iterable[str]) -> list[str]:
        """End requests; see ``Scheduler.abort``."""
        names = list(request_ids)
        entry: dict[str, Json] = {"ids": [str(name) for name in names]}
        return self._call("abort", entry, lambda: self._inner.abort(names), lambda live: {"live": list(live)})

    def schedule(self) -> StepPlan | None:
        """Plan the next step; see ``Scheduler.schedule``."""
        started_s = self._source()
        plan = self._call("schedule", {}, self._inner.schedule, lambda plan: {"plan": plain(plan)})
        if plan is not None:
            self._started_s[plan.step_id] = started_s
        return plan

    def update(self, plan: StepPlan, result: StepResult) -> list[RowOutput]:
        """Take in a result; see ``Scheduler.update``."""
        entry = {"step": plan.step_id, **_result_entry(result)}
        return self._call("update", entry, lambda: self._inner.update(plan, result), self._landing(plan))

    def fail(self, plan: StepPlan, message: str) -> list[RowOutput]:
        """Take in that a step raised; see ``Scheduler.fail``."""
        entry: dict[str, Json] = {"step": plan.step_id, "message": str(message)}
        return self._call("fail", entry, lambda: self._inner.fail(plan, message), self._landing(plan))

    def has_work(self) -> bool:
        """Tell whether there is something to do; with nothing to do the record is brought to the file."""
        has_work = self._inner.has_work()
        if not has_work:
            self._writer.flush()
        return has_work

    def stats(self) -> SchedulerStats:
        """Return a snapshot of the counters."""
        return self._inner.stats()

    def __getattr__(self, name: str) -> object:
        """Whatever else the scheduler inside has; public methods of it are recorded when they are called."""
        if name.startswith("_"):
            raise AttributeError(name)
        found = getattr(self._inner, name)
        return self._recorded(name, found) if callable(found) else found

    # Lines

    def _recorded(self, name: str, method: Callable[..., _T]) -> Callable[..., _T]:
        def call(*args: object, **kwargs: object) -> _T:
            try:
                entry: dict[str, Json] = {
                    "name": name,
                    "args": encode(list(args)),
                    "kwargs": encode(dict(kwargs)),
                }
            except Unrecordable as error:
                entry = {"name": name, "dropped": [f"{name}: {error}"]}
            return self._call("call", entry, lambda: method(*args, **kwargs))

        return call

    def _call(
        self,
        kind: str,
        entry: Mapping[str, Json],
        call: Callable[[], _T],
        answer: Callable[[_T], Mapping[str, Json]] = lambda _: {},
    ) -> _T:
        """Make a call with the clock held, then write its line."""
        at_s = self._clock.held_s = self._source()
        line: dict[str, Json] = {"call": kind, "at_s": at_s, **entry}
        try:
            result = call()
        except Exception as error:
            line["raised"] = type(error).__name__
            raise
        else:
            if self._writer.is_open:
                line.update(answer(result))
            return result
        finally:
            self._clock.held_s = None
            self._writer.write(line)

    def _landing(self, plan: StepPlan) -> Callable[[list[RowOutput]], Mapping[str, Json]]:
        """Return what a landed step adds to its line: who ended, and how long the step took.

        That is the time from the start of its planning, or from the landing before it where that was later:
        in the overlapped loop a step begins when the one before it ends.
        """

        def answer(outputs: list[RowOutput]) -> Mapping[str, Json]:
            now = self._source()
            started_s = max(self._started_s.pop(plan.step_id, now), self._landed_s)
            self._landed_s = now
            return {"seconds": now - started_s, **ends_of(outputs)}

        return answer


def ends_of(outputs: list[RowOutput]) -> dict[str, Json]:
    """Return what a line says of the requests that ended: nothing where none did."""
    ends = [[output.request_id, output.finish_reason] for output in outputs if output.finish_reason]
    return {"ends": ends} if ends else {}


def _request_entry(request: Request) -> dict[str, Json]:
    return _entry("request", request, without=("payload",))


def _result_entry(result: StepResult) -> dict[str, Json]:
    entry = _entry("result", result, without=_OPAQUE)
    for name in _OPAQUE:
        rows: Mapping[int, object] = getattr(result, name)
        if rows:
            entry[name] = [int(row) for row in rows]
    return entry


def _entry(kind: str, value: Request | StepResult, without: tuple[str, ...]) -> dict[str, Json]:
    """Return the fields of a dataclass; what has no form in a record is left out and named."""
    kept: dict[str, Json] = {}
    dropped: list[Json] = []
    for field in fields(value):
        found = getattr(value, field.name)
        if field.name in without or is_default(field, found):
            continue
        try:
            kept[field.name] = encode(found)
        except Unrecordable:
            dropped.append(field.name)
    return {kind: kept, **({"dropped": dropped} if dropped else {})}


def _path_of(factory: Callable[..., object]) -> str:
    return f"{factory.__module__}:{getattr(factory, '__qualname__', type(factory).__qualname__)}"
