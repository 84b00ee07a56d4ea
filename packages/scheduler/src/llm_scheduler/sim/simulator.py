"""Drives a real scheduler and cache through a workload on a simulated clock; knows nothing of metrics."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import numpy as np
from llm_kvcache import KVCache

from llm_scheduler.errors import Busy, SchedulerError
from llm_scheduler.plan import Int32, Int64, Ragged, RowOutput, StepPlan, StepResult
from llm_scheduler.protocol import Scheduler
from llm_scheduler.request import Request
from llm_scheduler.sim.arrivals import Arrivals
from llm_scheduler.sim.engine_setup import EngineSetup, SimulatedClock
from llm_scheduler.sim.errors import InvalidStepTime, SchedulerFault, SchedulerStalled
from llm_scheduler.sim.recording import Outcome, Recording
from llm_scheduler.sim.step_time import StepLoad, StepTime
from llm_scheduler.sim.token_streams import STOP_TOKEN, Content, first_ids
from llm_scheduler.sim.workload import Workload

_NO_STOPS: frozenset[int] = frozenset()
_STOPS = frozenset({STOP_TOKEN})


@dataclass(frozen=True, slots=True, eq=False)
class _Flight:
    """A plan and whose rows it has.

    Attributes:
        plan: The plan.
        requests: int64[R], request index of each row.
    """

    plan: StepPlan
    requests: Int64


class Simulator:
    """One run. The device executes plans in order, one at a time.

    At depth 1 a plan is made when the step before it has ended and been updated. At depth 2 it is made when
    that step begins, so what arrives or ends meanwhile shows one step later, as in the overlapped loop of a
    real engine.

    Args:
        workload: What arrives.
        setup: The engine.
        step_time: How long a step takes.

    Attributes:
        cache: The cache; the scheduler is its only user.
        scheduler: The scheduler.
        clock: The simulated clock.
        recording: What happened so far.
    """

    def __init__(self, workload: Workload, setup: EngineSetup, step_time: StepTime) -> None:
        self._workload = workload
        if not setup.config.tenant_weights and workload.tenant_weights:
            setup = replace(setup, config=replace(setup.config, tenant_weights=dict(workload.tenant_weights)))
        self._setup = setup
        self._step_time = step_time
        self.clock = SimulatedClock()
        self.cache: KVCache = setup.make_cache()
        self.scheduler: Scheduler = setup.make_scheduler(self.cache, self.clock)
        self.recording = Recording(len(workload), len(workload.tenant_names))
        self._arrivals = Arrivals(workload)
        self._followers = _followers(workload)
        # Of a scheduler that ends requests without a step; others have no such method.
        self._take_ended: Callable[[], list[RowOutput]] = getattr(self.scheduler, "take_ended", list)
        self._salts = {index: salt.encode() for index, salt in workload.salts.items()}
        self._tries: dict[int, int] = {}
        self._in_flight: deque[_Flight] = deque()
        self._request_at_slot: Int64 = np.zeros(setup.config.max_num_seqs, np.int64)
        self._row_at_slot: Int64 = np.zeros(setup.config.max_num_seqs, np.int64)
        self._limits = np.minimum(workload.output_tokens, setup.config.max_model_len - workload.prompt_tokens)
        self._stops = workload.max_tokens > workload.output_tokens
        self._any_stops = bool(self._stops.any())
        outputs = first_ids(Content.OUTPUT, np.arange(len(workload), dtype=np.int64))
        self._first_output_ids = outputs - workload.prompt_tokens

    def run(self) -> Recording:
        """Run to the end.

        Returns:
            What happened, the same for the same arguments.

        Raises:
            SchedulerStalled: The scheduler keeps requests and plans nothing, with nothing left to arrive.
            SchedulerFault: The scheduler broke its protocol.
            InvalidStepTime: The time model gave no positive number.
        """
        while True:
            self._deliver()
            self._plan_ahead()
            if self._in_flight:
                self._execute(self._in_flight.popleft())
            elif ended := self._take_ended():
                self._take_ends(ended)
            elif self._arrivals.next_s < math.inf:
                self.clock.now_s = self._arrivals.next_s
            else:
                break
        if self.scheduler.has_work():
            live = int((self.recording.requests.outcomes == Outcome.PENDING).sum())
            raise SchedulerStalled(self.clock.now_s, live)
        self.recording.preemptions = self.scheduler.stats().preemptions
        return self.recording

    # Arrivals

    def _deliver(self) -> None:
        while self._arrivals.next_s <= self.clock.now_s:
            arrives_s = self._arrivals.next_s
            index = self._arrivals.pop()
            log = self.recording.requests
            if math.isnan(log.arrived_s[index]):
                log.arrived_s[index] = arrives_s
            self._send(index)

    def _send(self, index: int) -> None:
        log = self.recording.requests
        try:
            self.scheduler.add(self._request(index))
        except Busy as busy:
            tries = self._tries.get(index, 0)
            if tries < self._setup.max_retries:
                self._tries[index] = tries + 1
                log.retries += 1
                self._arrivals.start(index, self.clock.now_s + busy.retry_after_s)
                return
            self._refuse(index, busy)
        except SchedulerError as error:
            self._refuse(index, error)
        else:
            self.recording.tenants.live[self._workload.tenants[index]] += 1

    def _request(self, index: int) -> Request:
        workload = self._workload
        arrived_s = float(self.recording.requests.arrived_s[index])
        deadline_s = float(workload.deadline_s[index])
        return Request(
            request_id=str(index),
            token_ids=workload.prompt(index),
            max_tokens=int(workload.max_tokens[index]),
            stop_token_ids=_STOPS if self._stops[index] else _NO_STOPS,
            priority=int(workload.priorities[index]),
            arrival_s=arrived_s,
            deadline_s=None if math.isnan(deadline_s) else arrived_s + deadline_s,
            tenant=workload.tenant_names[workload.tenants[index]],
            salt=self._salts.get(index),
        )

    def _refuse(self, index: int, error: SchedulerError) -> None:
        self.recording.requests.refusals[type(error).__name__] += 1
        self._end(index, Outcome.REFUSED)

    # Steps

    def _plan_ahead(self) -> None:
        while len(self._in_flight) < self._setup.depth:
            plan = self.scheduler.schedule()
            if plan is None:
                return
            self._note_admissions(plan)
            self._in_flight.append(_Flight(plan, self._request_at_slot[plan.slots]))

    def _note_admissions(self, plan: StepPlan) -> None:
        if not plan.admitted:
            return
        log = self.recording.requests
        self._row_at_slot[plan.slots] = np.arange(plan.num_rows)
        for new in plan.admitted:
            index = self._index_of(new.request_id)
            self._request_at_slot[new.slot] = index
            self.recording.admissions += 1
            if log.cached_tokens[index] < 0:
                log.cached_tokens[index] = plan.num_computed[self._row_at_slot[new.slot]]
                log.admitted_s[index] = self.clock.now_s

    def _index_of(self, request_id: str) -> int:
        if not request_id.isdecimal() or int(request_id) >= len(self._workload):
            raise SchedulerFault(request_id, "was never added")
        return int(request_id)

    def _execute(self, flight: _Flight) -> None:
        """Run one plan on the simulated device and take in its result."""
        plan = flight.plan
        load = StepLoad.of_plan(plan)
        seconds = self._seconds(load)
        self._log_step(load, plan.num_rows, seconds)
        self.clock.now_s += seconds
        positions = plan.num_computed + plan.num_tokens
        outputs = self.scheduler.update(plan, self._result(flight, positions))
        if len(self.recording.tenants.live) > 1:
            self.recording.tenants.take_step(self._workload.tenants[flight.requests], plan.num_tokens)
        self._take_tokens(flight)
        self._take_ends(outputs)

    def _seconds(self, load: StepLoad) -> float:
        seconds = self._step_time.seconds(load)
        if not 0 < seconds < math.inf:
            raise InvalidStepTime("seconds", f"expected a positive finite number, got {seconds!r} for {load}")
        host_s = self._setup.host_s
        return seconds + host_s if self._setup.depth == 1 else max(seconds, host_s)

    def _log_step(self, load: StepLoad, num_rows: int, seconds: float) -> None:
        steps, stats = self.recording.steps, self.scheduler.stats()
        steps.start_s.append(self.clock.now_s)
        steps.seconds.append(seconds)
        steps.num_rows.append(num_rows)
        steps.num_tokens.append(load.num_tokens)
        steps.running.append(stats.running)
        steps.waiting.append(stats.waiting)
        steps.used_blocks.append(self.cache.stats().used)

    def _result(self, flight: _Flight, positions: Int32) -> StepResult:
        """Make the tokens of a step: each request's next output, whatever happened to it before."""
        samples, requests = flight.plan.samples, flight.requests
        offsets = np.zeros(len(samples) + 1, np.int32)
        np.cumsum(samples, out=offsets[1:])
        if offsets[-1] < len(samples):
            requests, positions = requests[samples], positions[samples]
        tokens = (self._first_output_ids[requests] + positions).astype(np.int32)
        if self._any_stops:
            outputs = positions - self._workload.prompt_tokens[requests] + 1
            tokens[self._stops[requests] & (outputs == self._limits[requests])] = STOP_TOKEN
        return StepResult(flight.plan.step_id, Ragged(tokens, offsets))

    def _take_tokens(self, flight: _Flight) -> None:
        log = self.recording.requests
        takes = flight.plan.samples & (log.outcomes[flight.requests] == Outcome.PENDING)
        takers = flight.requests[takes]
        if len(takers):
            log.take_tokens(takers, self.clock.now_s)
        self.recording.wasted_tokens += int(np.count_nonzero(flight.plan.samples)) - len(takers)

    # Ends

    def _take_ends(self, outputs: Iterable[RowOutput]) -> None:
        for output in [output for output in outputs if output.finish_reason is not None]:
            self._take_end(output)

    def _take_end(self, output: RowOutput) -> None:
        index = self._index_of(output.request_id)
        log = self.recording.requests
        if log.outcomes[index] != Outcome.PENDING:
            raise SchedulerFault(output.request_id, "ended twice")
        if output.finish_reason in {"stop", "length"}:
            if log.num_outputs[index] != self._limits[index]:
                found = f"{log.num_outputs[index]} tokens, expected {self._limits[index]}"
                raise SchedulerFault(output.request_id, f"ended with {found}")
            self._end(index, Outcome.FINISHED)
        else:
            self._end(index, Outcome.EXPIRED if output.finish_reason == "deadline" else Outcome.FAILED)
        self.recording.tenants.live[self._workload.tenants[index]] -= 1

    def _end(self, index: int, outcome: Outcome) -> None:
        """Note an end and start what follows it."""
        log, workload = self.recording.requests, self._workload
        ends = [(index, outcome)]
        while ends:
            index, outcome = ends.pop()
            log.outcomes[index] = outcome
            log.ended_s[index] = self.clock.now_s
            for follower in self._followers.get(index, ()):
                if outcome != Outcome.FINISHED and workload.continues[follower]:
                    ends.append((follower, Outcome.NOT_SENT))
                else:
                    self._arrivals.start(follower, self.clock.now_s + float(workload.arrival_s[follower]))


def _followers(workload: Workload) -> dict[int, list[int]]:
    followers: dict[int, list[int]] = {}
    for index in np.flatnonzero(workload.after >= 0).tolist():
        followers.setdefault(int(workload.after[index]), []).append(index)
    return followers
