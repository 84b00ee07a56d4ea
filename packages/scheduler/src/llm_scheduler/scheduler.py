"""The default scheduler: token-budget steps over running and waiting requests; knows nothing of models."""

from __future__ import annotations

import time
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from llm_kvcache import KVCache

from llm_scheduler.admission import AdmissionGate, FinishRate, checked_request, require_fits
from llm_scheduler.admitting import Admitter
from llm_scheduler.aging import Aging
from llm_scheduler.caps import Cap, Caps
from llm_scheduler.config import SchedulerConfig
from llm_scheduler.configured_caps import configured_caps
from llm_scheduler.deadlines import Deadlines
from llm_scheduler.drafts import Drafts
from llm_scheduler.errors import DuplicateRequest, InvalidResult
from llm_scheduler.in_flight import PlanInFlight, PlansInFlight, RowTokens, checked_tokens
from llm_scheduler.metering import Meter
from llm_scheduler.plan import Bool, Int32, RowOutput, StepPlan, StepResult
from llm_scheduler.planning import Planner
from llm_scheduler.policy import Policy
from llm_scheduler.policy_loading import checked_policy, make_policy
from llm_scheduler.protocol import API_VERSION
from llm_scheduler.remote_kv import RemoteKV, Transfers
from llm_scheduler.request import Request, RequestState
from llm_scheduler.residency import Residency
from llm_scheduler.results import Results, error_output
from llm_scheduler.service_time import MeasuredServiceTime, ServiceTime
from llm_scheduler.slots import ENDED, FAILED, LIVE, SlotTable
from llm_scheduler.stats import SchedulerStats
from llm_scheduler.waiting import WaitingQueue


class TokenBudgetScheduler:
    """Gives every request some of its uncomputed tokens in each step, within a token budget.

    There is no prefill and no decode phase: a row computes up to (known tokens - computed tokens). Running
    requests come first, then waiting ones while slots, budget and blocks allow. A request is admitted only
    when the blocks of all its known tokens are there, so a prompt cut into chunks never stalls half way. When
    a running request finds no block, the last one in policy order loses its blocks and computes again later.

    Args:
        config: Limits and policy.
        cache: The KV cache; this scheduler must be its only user.
        clock: Seconds, the clock of ``Request.deadline_s``; also for the estimate in ``Busy``.
        policy: Instead of the one that ``config.policy`` names.
        caps: Besides those that ``config`` asks for.
        service_time: Estimates for deadlines; by default measured from the steps.
        remote_kv: Asked, when a request is admitted, for KV that can be brought from elsewhere.
    """

    API_VERSION: ClassVar[int] = API_VERSION

    def __init__(
        self,
        config: SchedulerConfig,
        cache: KVCache,
        *,
        clock: Callable[[], float] = time.monotonic,
        policy: Policy | None = None,
        caps: Sequence[Cap] = (),
        service_time: ServiceTime | None = None,
        remote_kv: RemoteKV | None = None,
    ) -> None:
        self._config = config
        self._cache = cache
        self._clock = clock
        self._policy = make_policy(config) if policy is None else checked_policy(policy)
        self._service_time = MeasuredServiceTime() if service_time is None else service_time
        self._rate = FinishRate(clock)
        self._gate = AdmissionGate(config, self._rate)
        self._deadlines = Deadlines(self._service_time, clock)
        self._table = SlotTable(config.max_num_seqs)
        self._waiting = WaitingQueue(self._policy, Aging(config.aging if self._policy.ages else None))
        self._meter = Meter(self._policy, self._table)
        self._caps = Caps([*configured_caps(config), *caps])
        self._transfers = Transfers(remote_kv, config.remote_kv_timeout_s, clock)
        self._residency = Residency(
            cache, self._table, self._waiting, self._meter, self._caps, self._deadlines, self._transfers
        )
        self._admitter = Admitter(
            config, self._table, self._waiting, self._residency, self._meter, self._caps
        )
        self._drafts = Drafts(config.max_draft_tokens, self._table, self._caps)
        self._planner = Planner(
            config,
            cache,
            self._table,
            self._waiting,
            self._residency,
            self._admitter,
            self._caps,
            self._drafts,
        )
        self._results = Results(self._table, self._residency, self._end)
        self._in_flight = PlansInFlight(config.max_plans_in_flight)
        self._requests: dict[str, RequestState] = {}
        self._ended_waiting: list[RowOutput] = []
        self._num_added = 0
        self._num_steps = 0
        self._num_scheduled_tokens = 0
        self._last_update_s = float("-inf")
        self._finished: Counter[str] = Counter()
        self._policy.bind(_View(self._cached_tokens, lambda: self._num_steps, clock))

    def add(self, request: Request) -> None:
        """Queue a request; see ``Scheduler.add``.

        Raises:
            DeadlineUnmet: It would end after its deadline.
        """
        request = checked_request(request, self._config.max_model_len)
        if request.request_id in self._requests:
            raise DuplicateRequest(request.request_id)
        num_prompt_tokens = len(request.token_ids)
        max_outputs = min(request.max_tokens, self._config.max_model_len - num_prompt_tokens)
        require_fits(num_prompt_tokens + max_outputs, self._cache)
        self._gate.require_room(num_prompt_tokens, self._waiting)
        state = RequestState(
            request=request,
            key=(*self._policy.key(request), self._num_added),
            urgency=self._policy.urgency(request),
            lane=self._policy.lane(request),
            max_outputs=max_outputs,
            stop_token_ids=request.stop_token_ids,
            waits_for=set(request.waits_for),
            outputs=array("i", request.output_token_ids),
        )
        if request.deadline_s is not None:
            self._deadlines.require_meetable(request, self._waiting.num_tokens_before(state))
        self._num_added += 1
        self._requests[request.request_id] = state
        self._meter.settle()
        self._policy.joined(request)
        self._waiting.add(state)
        self._deadlines.watch(state)

    def ready(self, request_id: str, what: str) -> bool:
        """Take note that something a request waits for (``Request.waits_for``) is there.

        Returns:
            Whether the request was live and still waited for it.
        """
        return self._waiting.ready(request_id, what)

    def kv_arrived(self, request_id: str, num_tokens: int) -> bool:
        """Take note that the transfer of a request's KV is over; see ``RemoteKV``.

        Args:
            request_id: The request, which may have ended meanwhile.
            num_tokens: Tokens that were brought, from the first asked for; 0 where the transfer failed. What
                is missing is computed.

        Returns:
            Whether a request was waiting for it. Otherwise what the transfer held is free now.

        Raises:
            InvalidResult: More tokens than were asked for.
        """
        return self._residency.finish_loading(request_id, num_tokens)

    def abort(self, request_ids: Iterable[str]) -> list[str]:
        """End requests without further output; see ``Scheduler.abort``."""
        requests = self._requests
        live = [requests[request_id] for request_id in dict.fromkeys(request_ids) if request_id in requests]
        slots = [state.slot for state in live if state.slot >= 0]
        for state in live:
            self._end(state, "abort")
        self._residency.give_back_idle(np.array(slots, np.int64))
        return [state.request.request_id for state in live]

    def schedule(self) -> StepPlan | None:
        """Plan the next step; see ``Scheduler.schedule``."""
        self._in_flight.require_room()
        self._end_late_requests()
        self._residency.give_up_loading()
        planned = self._planner.plan(self._num_steps)
        if planned is None:
            self._end_stuck_requests()
            return None
        plan, slots = planned.plan, planned.slots
        states, request_ids = self._residency.states_at(slots)
        generations = self._table.generation[slots]
        self._in_flight.add(
            PlanInFlight(plan, slots, states, request_ids, generations, planned.transfer_batch, self._clock())
        )
        self._num_steps += 1
        self._num_scheduled_tokens += plan.total_tokens
        return plan

    def update(self, plan: StepPlan, result: StepResult) -> list[RowOutput]:
        """Take in the result of the oldest plan in flight; see ``Scheduler.update``."""
        flight = self._in_flight.oldest(plan)
        tokens = checked_tokens(flight.plan, result)
        self._require_single_tokens(flight, tokens)
        self._measure(flight)
        occupied = self._land(flight)
        if flight.transfer_batch is not None:
            self._cache.finish_transfers(flight.transfer_batch)
        num_computed = flight.plan.num_computed + flight.plan.num_tokens
        if flight.plan.drafts is not None:
            num_computed -= self._reject_drafts(flight, occupied, tokens)
        outputs = self._results.take(flight, occupied, tokens, result)
        for row in result.faults:
            # Also where the request had ended before its row went wrong.
            if occupied[row]:
                self._table.ended[flight.slots[row]] = FAILED
        slots = flight.slots
        if not occupied.all():
            slots, num_computed = slots[occupied], num_computed[occupied]
        self._residency.commit(slots, num_computed)
        if self._drafts.is_on:
            goes_on = occupied & flight.plan.samples & (self._table.ended[flight.slots] == LIVE)
            self._drafts.propose(flight.slots[goes_on], result.drafts, np.flatnonzero(goes_on))
        self._residency.give_back_idle(slots)
        return outputs + self.take_ended() if self._ended_waiting else outputs

    def fail(self, plan: StepPlan, message: str) -> list[RowOutput]:
        """End the requests of a step that raised; see ``Scheduler.fail``."""
        flight = self._in_flight.find(plan)
        occupied = self._land(flight)
        ended = [state for state in flight.states if not state.finished]
        for state in ended:
            self._end(state, "error")
        slots = flight.slots[occupied]
        # Also where the request had ended before: a later plan of it builds on what this one did not compute.
        self._table.ended[slots] = FAILED
        if flight.transfer_batch is not None:
            self._residency.lose_loads(self._cache.finish_transfers(flight.transfer_batch, succeeded=False))
        self._residency.give_back_idle(slots)
        return [error_output(state, message) for state in ended] + self.take_ended()

    def take_ended(self) -> list[RowOutput]:
        """Return the outputs of requests that ended while they waited, each once.

        ``update`` and ``fail`` return them too, behind their own. A loop that finds no plan to run asks here.
        """
        if not self._ended_waiting:
            return []
        outputs, self._ended_waiting = self._ended_waiting, []
        return outputs

    def has_work(self) -> bool:
        """Tell whether a request is live, a plan is in flight, or an output was not taken yet."""
        return bool(self._requests) or len(self._in_flight) > 0 or bool(self._ended_waiting)

    def stats(self) -> SchedulerStats:
        """Return a snapshot of the counters."""
        cache = self._cache.stats()
        return SchedulerStats(
            running=len(self._residency.running),
            waiting=len(self._waiting),
            waiting_tokens=self._waiting.num_prompt_tokens,
            plans_in_flight=len(self._in_flight),
            steps=self._num_steps,
            scheduled_tokens=self._num_scheduled_tokens,
            preemptions=self._residency.num_preemptions,
            finished_stop=self._finished["stop"],
            finished_length=self._finished["length"],
            finished_abort=self._finished["abort"],
            finished_error=self._finished["error"],
            finished_deadline=self._finished["deadline"],
            loading=self._transfers.num_awaited,
            not_ready=self._waiting.num_not_ready,
            prefix_queries=self._residency.prefix_queries,
            prefix_hits=self._residency.prefix_hits,
            num_blocks=cache.num_blocks,
            used_blocks=cache.used,
        )

    # Results

    def _land(self, flight: PlanInFlight) -> Bool:
        """Undo what the planner counted in advance; return bool[R], rows that were not preempted since."""
        self._in_flight.remove(flight)
        table, samples = self._table, flight.plan.samples
        occupied = table.still_occupied(flight.slots, flight.generations)
        if occupied.all():
            table.plans[flight.slots] -= 1
            table.in_flight[flight.slots] -= samples
            return occupied
        slots = flight.slots[occupied]
        table.plans[slots] -= 1
        table.in_flight[slots] -= samples[occupied]
        for row in np.flatnonzero(~occupied & samples).tolist():
            flight.states[row].tokens_in_flight -= 1
        return occupied

    def _reject_drafts(self, flight: PlanInFlight, occupied: Bool, tokens: RowTokens) -> Int32:
        """Take back the tokens computed for drafts that were not accepted; return int32[R], how many."""
        assert flight.plan.drafts is not None, "the plan has no drafts"
        num_drafts = np.diff(flight.plan.drafts.offsets)
        rejected = np.where(num_drafts > 0, num_drafts + 1 - tokens.lengths, 0).astype(np.int32)
        self._table.computed[flight.slots[occupied]] -= rejected[occupied]
        return rejected

    def _require_single_tokens(self, flight: PlanInFlight, tokens: RowTokens) -> None:
        """Refuse several tokens of a row that a later plan holds: that plan counts on one."""
        several = tokens.lengths > 1
        if not several.any():
            return
        held = self._table.still_occupied(flight.slots, flight.generations) & (
            self._table.plans[flight.slots] > 1
        )
        if (several & held).any():
            row = int(np.flatnonzero(several & held)[0])
            message = f"row {row} has {tokens.lengths[row]} tokens while a later plan with it is in flight"
            raise InvalidResult("tokens", message)

    def _end(self, state: RequestState, reason: str) -> None:
        """Take a request out of the books; its slot and blocks stay until no plan in flight holds them."""
        state.finished = True
        del self._requests[state.request.request_id]
        self._residency.end(state, FAILED if reason == "error" else ENDED)
        self._policy.left(state.request)
        self._finished[reason] += 1
        self._rate.record()

    def _end_stuck_requests(self) -> None:
        """End requests that their tenant's quota keeps out although nobody holds a block: they never fit."""
        if len(self._in_flight) or not len(self._waiting) or self._cache.stats().used:
            return
        for state in self._residency.quotas.refused():
            tenant, num_tokens = state.request.tenant, state.num_known_tokens
            self._end(state, "error")
            message = f"the block quota of tenant {tenant!r} has no room for {num_tokens} tokens"
            self._ended_waiting.append(error_output(state, message))

    # Deadlines

    def _end_late_requests(self) -> None:
        for state in self._deadlines.expired():
            self._end(state, "deadline")
            cached = max(state.num_cached_tokens, 0)
            output = RowOutput(state.request.request_id, [], "deadline", num_cached_tokens=cached)
            self._ended_waiting.append(output)

    def _measure(self, flight: PlanInFlight) -> None:
        """Learn from a step that ran: it began when it was made or when the one before was through."""
        now_s = self._clock()
        elapsed_s = now_s - max(flight.made_s, self._last_update_s)
        self._last_update_s = now_s
        self._service_time.observe(flight.plan.num_rows, flight.plan.total_tokens, elapsed_s)

    def _cached_tokens(self, request_id: str) -> int:
        state = self._requests.get(request_id)
        if state is None or state.slot >= 0:
            return -1
        return self._residency.cached_tokens(state)


@dataclass(frozen=True, slots=True)
class _View:
    """What the policy sees; implements ``SchedulerView``."""

    cached_tokens: Callable[[str], int]
    steps: Callable[[], int]
    now_s: Callable[[], float]

    @property
    def num_steps(self) -> int:
        return self.steps()
