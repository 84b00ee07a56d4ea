"""Runs a record through a fresh scheduler and compares what it decides; knows nothing of recording."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from llm_scheduler.loading import find_scheduler
from llm_scheduler.plan import RowOutput, StepPlan, StepResult
from llm_scheduler.recording.clock import HeldClock, make_with_clock
from llm_scheduler.recording.errors import RecordError
from llm_scheduler.recording.reader import RecordReader
from llm_scheduler.recording.recorder import ends_of
from llm_scheduler.recording.values import Decoded, Json, decode, plain
from llm_scheduler.request import Request


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """Where a replay first left the record.

    Attributes:
        line: The line of the record.
        call: The call: "schedule", "add", "abort", "update", "fail", or "call".
        what: What differs: a field of the plan, "plan", "raised", "live", "ends".
        recorded: What the record has, as JSON.
        replayed: What the replay gave.
    """

    line: int
    call: str
    what: str
    recorded: Json
    replayed: Json

    def __str__(self) -> str:
        return (
            f"line {self.line}: {self.call} differs in {self.what}\n"
            f"  recorded: {json.dumps(self.recorded)}\n  replayed: {json.dumps(self.replayed)}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayReport:
    """What a replay found.

    Attributes:
        path: The record.
        scheduler: The scheduler that replayed it.
        num_calls: Calls that agreed.
        num_plans: Plans that were equal.
        difference: The first difference, or None where everything agreed.
        is_truncated: The record ends in the middle of a line.
        notes: What may explain a difference: another clock, values that were not recorded.
    """

    path: str
    scheduler: str
    num_calls: int
    num_plans: int
    difference: Difference | None = None
    is_truncated: bool = False
    notes: tuple[str, ...] = ()

    @property
    def equal(self) -> bool:
        """Whether the replay reached equal plans from beginning to end."""
        return self.difference is None

    def __str__(self) -> str:
        ran = f"{self.num_plans} plans and {self.num_calls} calls"
        head = f"{self.path}: {self.scheduler} reaches equal plans: {ran}"
        if self.difference is not None:
            head = f"{self.path}: {self.scheduler} differs after {ran}"
        parts = [head]
        parts += ["the record is cut off: replayed up to there"] if self.is_truncated else []
        parts += [f"note: {note}" for note in self.notes]
        parts += [str(self.difference)] if self.difference is not None else []
        return "\n".join(parts)


def replay(path: str | Path, scheduler: str | Callable[..., object] | None = None) -> ReplayReport:
    """Run a record through a fresh scheduler and a fresh cache.

    The replay stops at the first call that does not go as recorded: from there on the record's results would
    answer other plans.

    Args:
        path: The record.
        scheduler: Another scheduler than the recorded one: a name as for ``load_scheduler``, a class, or a
            factory.

    Returns:
        Whether all plans were equal, or the first difference.

    Raises:
        RecordError: The file is no record, or is damaged.
        SchedulerNotFound, IncompatibleScheduler: The name leads to no scheduler.
    """
    with RecordReader(path) as reader:
        replayer = _Replayer(reader, scheduler)
        difference = replayer.run()
        return ReplayReport(
            path=str(path),
            scheduler=replayer.name,
            num_calls=replayer.num_calls,
            num_plans=replayer.num_plans,
            difference=difference,
            is_truncated=reader.is_truncated,
            notes=tuple(replayer.notes),
        )


class _Replayer:
    """One replay."""

    def __init__(self, reader: RecordReader, scheduler: str | Callable[..., object] | None) -> None:
        header = reader.header
        chosen = header.scheduler if scheduler is None else scheduler
        factory = find_scheduler(chosen) if isinstance(chosen, str) else chosen
        self.name = chosen if isinstance(chosen, str) else getattr(chosen, "__qualname__", repr(chosen))
        self.notes: dict[str, None] = {}
        self.num_calls = 0
        self.num_plans = 0
        self._reader = reader
        self._clock = HeldClock(lambda: 0.0)
        self._scheduler, has_clock = make_with_clock(factory, header.config, header.make_cache(), self._clock)
        self._plans: dict[int, StepPlan] = {}
        if not (has_clock and header.has_clock):
            self.notes["the scheduler reads a clock of its own: decisions by time may differ"] = None

    def run(self) -> Difference | None:
        for line, entry in self._reader.calls():
            dropped = entry.get("dropped", ())
            self.notes.update((f"not recorded: {name}", None) for name in dropped)
            if dropped and ("raised" in entry or entry.get("call") == "call"):
                continue  # it changed nothing, or cannot be made again
            try:
                difference = self._check(line, entry)
            except (KeyError, TypeError, ValueError, IndexError) as error:
                raise RecordError(self._reader.path, line, f"no call: {error!r}") from error
            if difference is not None:
                return difference
            self.num_calls += 1
        return None

    def _check(self, line: int, entry: Mapping[str, Json]) -> Difference | None:
        """Make the call of a line and compare."""
        kind = str(entry["call"])
        call = self._prepare(kind, entry)
        self._clock.held_s = float(entry["at_s"])
        replayed: dict[str, Json]
        try:
            replayed = dict(call())
        except Exception as error:  # noqa: BLE001 - what was raised when recording is raised again
            replayed = {"raised": type(error).__name__}
        for what in ("raised", "plan", "live", "ends"):
            recorded_value, replayed_value = entry.get(what), replayed.get(what)
            if recorded_value != replayed_value:
                if what == "plan":
                    what = _differing_field(recorded_value, replayed_value)
                return Difference(
                    line=line, call=kind, what=what, recorded=recorded_value, replayed=replayed_value
                )
        return None

    def _prepare(self, kind: str, entry: Mapping[str, Json]) -> Callable[[], Mapping[str, Json]]:
        """Return the call of a line; what is wrong with the line is raised here."""
        scheduler = self._scheduler
        if kind == "schedule":
            return self._schedule
        if kind == "add":
            request = Request(**_fields(entry["request"]))
            return lambda: _nothing(scheduler.add, request)
        if kind == "abort":
            names = [str(name) for name in entry["ids"]]
            return lambda: {"live": list(scheduler.abort(names))}
        if kind == "call":
            method = getattr(scheduler, str(entry["name"]))
            args, kwargs = decode(entry["args"]), decode(entry["kwargs"])
            return lambda: _nothing(method, *args, **kwargs)
        plan = self._plans[int(entry["step"])]
        if kind == "fail":
            return lambda: self._land(plan, scheduler.fail(plan, str(entry["message"])))
        if kind == "update":
            result = _result(entry)
            return lambda: self._land(plan, scheduler.update(plan, result))
        raise ValueError(f"unknown call {kind!r}")

    def _schedule(self) -> Mapping[str, Json]:
        plan = self._scheduler.schedule()
        if plan is not None:
            self._plans[plan.step_id] = plan
            self.num_plans += 1
        return {"plan": plain(plan)}

    def _land(self, plan: StepPlan, outputs: list[RowOutput]) -> Mapping[str, Json]:
        del self._plans[plan.step_id]
        return ends_of(outputs)


def _result(entry: Mapping[str, Json]) -> StepResult:
    opaque: dict[str, Decoded] = {
        name: dict.fromkeys(entry.get(name, ())) for name in ("logprobs", "prompt_logprobs")
    }
    return StepResult(**_fields(entry["result"]), **opaque)


def _fields(encoded: Json) -> dict[str, Decoded]:
    if not isinstance(encoded, dict):
        raise TypeError("expected an object of fields")
    return {name: decode(value) for name, value in encoded.items()}


def _nothing(call: Callable[..., object], *args: object, **kwargs: object) -> Mapping[str, Json]:
    """Make a call whose answer is not compared."""
    call(*args, **kwargs)
    return {}


def _differing_field(recorded: Json, replayed: Json) -> str:
    """Name the first field of a plan that differs; "plan" where one of them is none."""
    if not isinstance(recorded, dict) or not isinstance(replayed, dict):
        return "plan"
    names = [*recorded, *replayed]
    return str(next(name for name in names if recorded.get(name) != replayed.get(name)))
