"""Runs one sequence on a scheduler and checks every answer; knows nothing of how sequences are made."""

from __future__ import annotations

import random
import traceback
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeAlias, TypeVar

from llm_kvcache import KVCache

from llm_scheduler.config import SchedulerConfig
from llm_scheduler.conformance.bookkeeping import check_cache, check_stats
from llm_scheduler.conformance.capabilities import Seen
from llm_scheduler.conformance.ledger import Entry, Ledger
from llm_scheduler.conformance.malformed import MALFORMED, applies
from llm_scheduler.conformance.misuse import MISUSES
from llm_scheduler.conformance.operations import (
    Abort,
    Add,
    AddMalformed,
    Land,
    LandWrongly,
    Launch,
    Operation,
    Sequence,
)
from llm_scheduler.conformance.outputs import check_failed, check_updated
from llm_scheduler.conformance.rules import Rule, RuleBroken, require
from llm_scheduler.conformance.transcript import describe_outputs, describe_plan
from llm_scheduler.conformance.worker import SimulatedWorker
from llm_scheduler.errors import (
    Busy,
    DuplicateRequest,
    InvalidRequest,
    NeverFits,
    PlanOrderError,
    SchedulerError,
)
from llm_scheduler.plan import StepPlan, StepResult
from llm_scheduler.protocol import Scheduler
from llm_scheduler.request import Request

SchedulerFactory: TypeAlias = Callable[[SchedulerConfig, KVCache], Scheduler]

_T = TypeVar("_T")
_MOST_IDLE_TURNS = 100


@dataclass(frozen=True, slots=True)
class Flight:
    """A plan in flight: who its rows are, what the worker made of it, and whether the step raised."""

    plan: StepPlan
    entries: list[Entry]
    result: StepResult
    fails: bool


class Driver:
    """One scheduler in one world.

    Args:
        sequence: The world and the operations.
        factory: Makes the scheduler.
        seen: Where capabilities are counted.
    """

    def __init__(self, sequence: Sequence, factory: SchedulerFactory, seen: Seen) -> None:
        self._sequence = sequence
        self._world = sequence.world
        self._seen = seen
        self._cache = sequence.world.make_cache()
        self._ledger = Ledger(sequence.world)
        self._worker = SimulatedWorker(sequence.world, self._ledger)
        self._in_flight: deque[Flight] = deque()
        self._num_asked = 0
        self._num_plans = 0
        self._num_tokens = 0
        self._depth = sequence.world.config.max_plans_in_flight
        self.transcript: list[str] = []
        self.num_applied = 0
        self._scheduler = self._call(lambda: factory(sequence.world.config, self._cache), "the constructor")

    def run(self) -> None:
        """Apply the operations, then run to the end.

        Raises:
            RuleBroken: At the first broken rule.
        """
        for operation in self._sequence.operations:
            self._apply(operation)
            self._check_books()
            self.num_applied += 1
        self._drain()

    def _apply(self, operation: Operation) -> None:
        match operation:
            case Add():
                self._add(operation.request())
            case AddMalformed(kind):
                self._add_malformed(kind)
            case Abort(request_ids):
                self._abort(request_ids)
            case Launch():
                self._launch(operation)
            case Land(failed_first):
                self._land(failed_first=failed_first)
            case LandWrongly(kind):
                self._land_wrongly(kind)

    # Requests

    def _add(self, request: Request) -> None:
        name, live = request.request_id, self._ledger.live()
        note = f"add {name}: {len(request.token_ids)} prompt tokens, max_tokens={request.max_tokens}"
        self.transcript.append(note)
        if any(entry.name == name for entry in live):
            self._expect(lambda: self._scheduler.add(request), DuplicateRequest, Rule.ADD_REFUSES, note)
            return
        if self._world.num_blocks_at_most(request) > self._world.num_blocks:
            self._expect(lambda: self._scheduler.add(request), NeverFits, Rule.ADD_REFUSES, note)
            return
        must_be_busy = self._queue_is_full(request)
        before = self._snapshot()
        try:
            self._call(lambda: self._scheduler.add(request), f"add({name!r})", SchedulerError)
        except Busy as error:
            require(live, Rule.ADD_ACCEPTS, f"{name} is refused as Busy, but nothing else is live")
            sane = 0 < error.retry_after_s < float("inf")
            require(sane, Rule.ADD_REFUSES, f"Busy.retry_after_s is {error.retry_after_s}")
            self._require_unchanged(before, f"add({name!r}) that raised Busy")
            self._seen.refused_busy += 1
            self.transcript[-1] += " -> Busy"
            return
        except SchedulerError as error:
            kind = type(error).__name__
            raise RuleBroken(Rule.ADD_ACCEPTS, f"{name} fits, but {kind} was raised: {error}") from error
        require(not must_be_busy, Rule.QUEUE_BOUND, f"{name} is accepted, although {must_be_busy}")
        self._ledger.open(request, self._num_asked)

    def _queue_is_full(self, request: Request) -> str:
        """Return why the queue must be full, or nothing.

        Only requests that came after the last call of ``schedule`` are sure to wait: a scheduler may give
        slot and blocks to others before their first row tells it.
        """
        waiting = [
            entry.request for entry in self._ledger.live() if entry.num_plans_before == self._num_asked
        ]
        config = self._world.config
        if len(waiting) >= config.max_waiting_requests:
            return f"{len(waiting)} requests wait and max_waiting_requests is {config.max_waiting_requests}"
        num_tokens = sum(len(other.token_ids) for other in waiting)
        if waiting and num_tokens + len(request.token_ids) > config.max_waiting_tokens:
            return f"{num_tokens} tokens wait and max_waiting_tokens is {config.max_waiting_tokens}"
        return ""

    def _add_malformed(self, kind: str) -> None:
        if not applies(kind, self._world):
            return
        malformed = MALFORMED[kind]
        note = f"add a request with {kind}"
        self.transcript.append(note)
        request = malformed.request(self._world)
        error = self._expect(lambda: self._scheduler.add(request), malformed.error, Rule.ADD_REFUSES, note)
        if isinstance(error, InvalidRequest):
            message = f"{note}: InvalidRequest names {error.field!r}, expected {malformed.field!r}"
            require(error.field == malformed.field, Rule.ADD_REFUSES, message)

    def _abort(self, request_ids: tuple[str, ...]) -> None:
        self.transcript.append(f"abort {', '.join(request_ids)}")
        expected = self._ledger.live_ids(request_ids)
        found = self._call(lambda: self._scheduler.abort(iter(request_ids)), "abort")
        message = f"abort({list(request_ids)}) gave {found}, live were {expected}"
        require(sorted(found) == sorted(expected), Rule.ABORT_ANSWER, message)
        for name in expected:
            entry = self._ledger.get(name)
            assert entry is not None
            self._ledger.close(entry, "abort")
        self._seen.aborts += len(expected)

    # Steps

    def _launch(self, launch: Launch) -> StepPlan | None:
        if len(self._in_flight) > self._world.config.max_plans_in_flight:
            return None
        decodes = self._decodes_to_serve()
        plan = self._schedule()
        if plan is None:
            return None
        rng = random.Random(f"{launch.draw} {plan.step_id}")  # noqa: S311 - not cryptography
        rows = range(plan.num_rows)
        faulty = list(rows) if launch.fails else [row for row in rows if rng.random() < launch.faulty]
        result = self._worker.execute(plan, faulty)
        self._check_decodes_served(plan, decodes)
        self._count_admissions(plan)
        if not launch.fails:
            result = replace(
                result,
                logprobs={row: object() for row in rows if plan.samples[row]},
                prompt_logprobs={row: object() for row in rows if rng.random() < 0.1},
                faults={row: f"fault in row {row} of step {plan.step_id}" for row in faulty},
            )
        entries = [self._worker.views[slot].entry for slot in plan.slots.tolist()]
        self._in_flight.append(Flight(plan, entries, result, launch.fails))
        return plan

    def _schedule(self) -> StepPlan | None:
        num_in_flight = len(self._in_flight)
        self._num_asked += 1
        before = self._snapshot()
        try:
            plan = self._call(self._scheduler.schedule, "schedule", PlanOrderError)
        except PlanOrderError as error:
            require(num_in_flight, Rule.NO_CRASH, f"schedule with nothing in flight raised {error!r}")
            self._require_unchanged(before, "schedule that raised PlanOrderError")
            self._depth = min(self._depth, num_in_flight)
            self.transcript.append("schedule -> PlanOrderError")
            return None
        if plan is None:
            self.transcript.append("schedule -> None")
            return None
        names = {slot: view.request_id for slot, view in self._worker.views.items()}
        self.transcript.append(describe_plan(plan, names))
        limit = self._world.config.max_plans_in_flight
        message = f"{num_in_flight + 1} plans are in flight, max_plans_in_flight is {limit}"
        require(num_in_flight < limit, Rule.PLAN_DEPTH, message)
        self._seen.count_plan(plan, num_in_flight)
        self._num_plans += 1
        self._num_tokens += plan.total_tokens
        return plan

    def _decodes_to_serve(self) -> set[Entry]:
        """Return who holds a slot and wants one token, where blocks cannot be what it lacks."""
        live = self._ledger.live()
        if sum(self._world.num_blocks_at_most(entry.request) for entry in live) > self._world.num_blocks:
            return set()
        return {
            view.entry
            for view in self._worker.views.values()
            if view.entry.is_live
            and len(view.tokens) - view.num_computed == 1
            and len(view.tokens) < view.limit
        }

    def _check_decodes_served(self, plan: StepPlan, decodes: set[Entry]) -> None:
        if (plan.num_tokens == 1).all():
            return
        served = {self._worker.views[slot].entry for slot in plan.slots.tolist()}
        # One that lost its slot in this very plan was preempted.
        missed = sorted(entry.name for entry in (decodes & self._worker.holders()) - served)
        message = f"{missed} want one token each and get none, while a chunk runs"
        require(not missed, Rule.DECODES_BEFORE_CHUNKS, message)

    def _count_admissions(self, plan: StepPlan) -> None:
        rows = {slot: row for row, slot in enumerate(plan.slots.tolist())}
        for new in plan.admitted:
            entry = self._ledger.get(new.request_id)
            assert entry is not None
            num_cached = int(plan.num_computed[rows[new.slot]])
            if entry.num_cached_tokens is None:
                entry.num_cached_tokens = num_cached
            entry.num_admissions += 1
            self._seen.prefix_hits += num_cached > 0
            self._seen.preemptions += entry.num_admissions > 1

    def _land(self, *, failed_first: bool = False) -> None:
        if not self._in_flight:
            return
        failed = [index for index, flight in enumerate(self._in_flight) if flight.fails]
        index = failed[0] if failed_first and failed else 0
        flight = self._in_flight[index]
        del self._in_flight[index]
        plan = flight.plan
        if flight.fails:
            message = f"step {plan.step_id} raised"
            outputs = self._call(lambda: self._scheduler.fail(plan, message), "fail")
            self.transcript.append(f"fail step {plan.step_id} -> {describe_outputs(outputs)}")
            self._seen.errors += check_failed(self._ledger, flight.entries, outputs, message)
            return
        outputs = self._call(lambda: self._scheduler.update(plan, flight.result), "update")
        self.transcript.append(f"update step {plan.step_id} -> {describe_outputs(outputs)}")
        self._seen.errors += check_updated(self._ledger, flight.entries, outputs, flight.result)

    def _land_wrongly(self, kind: str) -> None:
        if not self._in_flight or self._in_flight[0].fails:
            return
        error, make = MISUSES[kind]
        call = make([(flight.plan, flight.result) for flight in self._in_flight])
        if call is None:
            return
        self.transcript.append(f"hand over {kind}")
        rule = Rule.PLAN_ORDER if error is PlanOrderError else Rule.RESULT_REFUSED
        self._expect(lambda: call(self._scheduler), error, rule, kind)

    # The end, and what holds all the time

    def _drain(self) -> None:
        """Run everything to its end, as deep as the scheduler allows, and check that nothing is left."""
        live = self._ledger.live()
        work = sum(self._world.limit(entry.request) for entry in live)
        # Each of them may have to compute everything again when another one ends, and be short of budget.
        most_steps = 200 + 4 * work * (1 + len(live))
        idle_turns = 0
        for _ in range(most_steps):
            if not self._ledger.live() and not self._in_flight:
                break
            launched = len(self._in_flight) < self._depth and self._launch(Launch()) is not None
            if not launched or len(self._in_flight) >= self._depth:
                idle_turns = 0 if launched or self._in_flight else idle_turns + 1
                self._land()
            self._check_books()
            message = f"schedule gives None with nothing in flight, and {self._live_names()} are live"
            require(idle_turns < _MOST_IDLE_TURNS, Rule.LIVENESS, message)
        message = f"{self._live_names()} are still live after {most_steps} turns"
        require(not self._ledger.live() and not self._in_flight, Rule.LIVENESS, message)
        plan = self._schedule()
        require(plan is None, Rule.PLAN_HAS_ROWS, "a plan is made, but no request is live")

    def _live_names(self) -> list[str]:
        return [entry.name for entry in self._ledger.live()]

    def _check_books(self) -> None:
        """Check what must hold after every operation."""
        in_flight = {entry for flight in self._in_flight for entry in flight.entries}
        check_cache(self._cache, self._world, in_flight.union(self._ledger.live()))
        num_live, num_in_flight = len(self._ledger.live()), len(self._in_flight)
        has_work = self._call(self._scheduler.has_work, "has_work")
        message = f"has_work is {has_work} with {num_live} live and {num_in_flight} plans in flight"
        require(has_work == bool(num_live or num_in_flight), Rule.HAS_WORK, message)
        expected = {
            "plans_in_flight": num_in_flight,
            "steps": self._num_plans,
            "scheduled_tokens": self._num_tokens,
            "used_blocks": self._cache.stats().used,
            "num_blocks": self._world.num_blocks,
        }
        check_stats(self._call(self._scheduler.stats, "stats"), self._ledger, expected)

    # Calls

    def _call(self, call: Callable[[], _T], name: str, documented: type[Exception] | tuple[()] = ()) -> _T:
        """Call the scheduler; what it raises beyond the documented is a finding."""
        try:
            return call()
        except documented:
            raise
        except Exception as error:
            place = traceback.extract_tb(error.__traceback__)[-1]
            where = f"{place.filename}:{place.lineno}"
            message = f"{name} raised {type(error).__name__}: {error} ({where})"
            raise RuleBroken(Rule.NO_CRASH, message) from error

    def _expect(
        self, call: Callable[[], object], kind: type[SchedulerError], rule: Rule, what: str
    ) -> SchedulerError:
        """Make a call that must raise this error and change nothing."""
        before = self._snapshot()
        try:
            call()
        except kind as error:
            self._require_unchanged(before, what)
            self.transcript[-1] += f" -> {kind.__name__}"
            return error
        except Exception as error:
            message = f"{what}: raised {type(error).__name__} ({error}), expected {kind.__name__}"
            raise RuleBroken(rule, message) from error
        raise RuleBroken(rule, f"{what}: nothing was raised, expected {kind.__name__}")

    def _snapshot(self) -> tuple[object, ...]:
        stats, cache = self._call(self._scheduler.stats, "stats"), self._cache.stats()
        has_work = self._call(self._scheduler.has_work, "has_work")
        return stats, has_work, cache.used, cache.free, cache.sequences

    def _require_unchanged(self, before: tuple[object, ...], what: str) -> None:
        after = self._snapshot()
        message = f"{what}: the state was {before}, it is {after}"
        require(after == before, Rule.ERRORS_CHANGE_NOTHING, message)
