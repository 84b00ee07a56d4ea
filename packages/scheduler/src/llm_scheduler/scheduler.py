"""The default scheduler: token-budget steps over running and waiting requests; knows nothing of models."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable
from typing import ClassVar

import numpy as np
from llm_kvcache import KVCache

from llm_scheduler.admission import AdmissionGate, FinishRate, checked_request, require_fits
from llm_scheduler.budget import share_budget
from llm_scheduler.config import SchedulerConfig
from llm_scheduler.errors import DuplicateRequest, InvalidResult
from llm_scheduler.in_flight import PlanInFlight, PlansInFlight, tokens_by_row
from llm_scheduler.ordering import OrderedRequests
from llm_scheduler.plan import Bool, NewRow, RowOutput, StepPlan, StepResult
from llm_scheduler.policy import policy_by_name
from llm_scheduler.protocol import API_VERSION
from llm_scheduler.request import Request, RequestState
from llm_scheduler.residency import Residency
from llm_scheduler.rows import PlannedRows
from llm_scheduler.slots import ENDED, FAILED, SlotTable
from llm_scheduler.stats import SchedulerStats
from llm_scheduler.stopping import take_tokens


class TokenBudgetScheduler:
    """Gives every request some of its uncomputed tokens in each step, within a token budget.

    There is no prefill and no decode phase: a row computes up to (known tokens - computed tokens). Running
    requests come first, then waiting ones while slots, budget and blocks allow. A request is admitted only
    when the blocks of all its known tokens are there, so a prompt cut into chunks never stalls half way. When
    a running request finds no block, the last one in policy order loses its blocks and computes again later.

    Args:
        config: Limits and policy.
        cache: The KV cache; this scheduler must be its only user.
        clock: Seconds, for the estimate in ``Busy``.
    """

    API_VERSION: ClassVar[int] = API_VERSION

    def __init__(
        self, config: SchedulerConfig, cache: KVCache, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._config = config
        self._policy = policy_by_name(config.policy)
        self._rate = FinishRate(clock)
        self._gate = AdmissionGate(config, self._rate)
        self._cache = cache
        self._table = SlotTable(config.max_num_seqs)
        self._waiting = OrderedRequests()
        self._residency = Residency(cache, self._table, self._waiting)
        self._in_flight = PlansInFlight(config.max_plans_in_flight)
        self._requests: dict[str, RequestState] = {}
        self._num_added = 0
        self._num_steps = 0
        self._num_scheduled_tokens = 0
        self._finished: Counter[str] = Counter()

    def add(self, request: Request) -> None:
        """Queue a request; see ``Scheduler.add``."""
        request = checked_request(request, self._config.max_model_len)
        if request.request_id in self._requests:
            raise DuplicateRequest(request.request_id)
        num_prompt_tokens = len(request.token_ids)
        max_outputs = min(request.max_tokens, self._config.max_model_len - num_prompt_tokens)
        require_fits(num_prompt_tokens + max_outputs, self._cache)
        self._gate.require_room(num_prompt_tokens, self._waiting)
        key = (*self._policy.key(request), self._num_added)
        state = RequestState(request, key, max_outputs, request.stop_token_ids)
        self._num_added += 1
        self._requests[request.request_id] = state
        self._waiting.add(state)

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
        budget = self._config.max_num_batched_tokens
        rows, short_of_blocks = self._plan_running(budget)
        admitted: list[RequestState] = []
        if not short_of_blocks:
            admitted, new_rows = self._admit(budget - rows.total_tokens)
            rows = rows.then(new_rows)
        if not len(rows):
            return None
        plan = self._make_plan(rows.single_tokens_first(), admitted)
        self._launch(plan)
        return plan

    def update(self, plan: StepPlan, result: StepResult) -> list[RowOutput]:
        """Take in the result of the oldest plan in flight; see ``Scheduler.update``."""
        flight = self._in_flight.oldest(plan)
        tokens = tokens_by_row(flight.plan, result)
        self._require_single_tokens(flight, tokens)
        occupied = self._land(flight)
        slots = flight.slots[occupied]
        outputs = self._take_results(flight.states, tokens, result)
        if result.faults:
            # Also where the request had ended before its row went wrong.
            faulty = np.isin(np.arange(len(occupied)), list(result.faults)) & occupied
            self._table.ended[flight.slots[faulty]] = FAILED
        self._residency.commit(slots, (flight.plan.num_computed + flight.plan.num_tokens)[occupied])
        self._residency.give_back_idle(slots)
        return outputs

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
        self._residency.give_back_idle(slots)
        return [_error_output(state, message) for state in ended]

    def has_work(self) -> bool:
        """Tell whether a request is live or a plan is in flight."""
        return bool(self._requests) or len(self._in_flight) > 0

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
            prefix_queries=self._residency.prefix_queries,
            prefix_hits=self._residency.prefix_hits,
            num_blocks=cache.num_blocks,
            used_blocks=cache.used,
        )

    # Planning

    def _plan_running(self, budget: int) -> tuple[PlannedRows, bool]:
        """Plan the running rows; also tell whether one of them found no blocks."""
        slots = self._residency.running_slots()
        granted = share_budget(self._table.tokens_wanted(slots), budget, self._most_tokens_per_row)
        chosen = granted > 0
        if not chosen.all():
            slots, granted = slots[chosen], granted[chosen]
        return self._residency.grow(slots, granted)

    def _admit(self, budget: int) -> tuple[list[RequestState], PlannedRows]:
        """Give slots and blocks to waiting requests, in order, until slots, budget or blocks run out."""
        admitted: list[RequestState] = []
        num_tokens: list[int] = []
        while budget > 0 and len(self._waiting) and self._table.num_free:
            state = self._waiting.first()
            if state.tokens_in_flight or not self._residency.move_in(state):
                break
            admitted.append(state)
            wanted = state.num_known_tokens - int(self._table.computed[state.slot])
            num_tokens.append(min(wanted, budget, self._most_tokens_per_row))
            budget -= num_tokens[-1]
        slots = np.array([state.slot for state in admitted], np.int64)
        return admitted, PlannedRows(slots, np.array(num_tokens, np.int64), self._residency.tables(slots))

    @property
    def _most_tokens_per_row(self) -> int:
        return self._config.long_prefill_tokens or self._config.max_num_batched_tokens

    def _make_plan(self, rows: PlannedRows, admitted: list[RequestState]) -> StepPlan:
        table, slots = self._table, rows.slots
        num_computed = table.computed[slots]
        num_tokens = rows.num_tokens.astype(np.int32)
        return StepPlan(
            step_id=self._num_steps,
            slots=slots.astype(np.int32),
            num_tokens=num_tokens,
            num_computed=num_computed,
            samples=num_computed + num_tokens == table.known[slots] + table.in_flight[slots],
            new_blocks=rows.blocks,
            admitted=[_new_row(state) for state in admitted],
            released=table.drain_released(),
            copies=self._cache.take_copies(),
        )

    def _launch(self, plan: StepPlan) -> None:
        """Count the plan's tokens as computed and its samples as known from now on."""
        table, slots = self._table, plan.slots.astype(np.int64)
        table.computed[slots] += plan.num_tokens
        table.in_flight[slots] += plan.samples
        table.plans[slots] += 1
        self._in_flight.add(PlanInFlight(plan, slots, table.states_at(slots), table.generation[slots]))
        self._num_steps += 1
        self._num_scheduled_tokens += plan.total_tokens

    # Results

    def _land(self, flight: PlanInFlight) -> Bool:
        """Undo what ``_launch`` counted in advance; return bool[R], rows that were not preempted since."""
        self._in_flight.remove(flight)
        table, samples = self._table, flight.plan.samples
        occupied = table.still_occupied(flight.slots, flight.generations)
        slots = flight.slots[occupied]
        table.plans[slots] -= 1
        table.in_flight[slots] -= samples[occupied]
        for row in np.flatnonzero(~occupied & samples).tolist():
            flight.states[row].tokens_in_flight -= 1
        return occupied

    def _take_results(
        self, states: list[RequestState], tokens: list[list[int]], result: StepResult
    ) -> list[RowOutput]:
        """Hand the tokens to their requests, tell the cache once for all, then end those that are done."""
        outputs: list[RowOutput] = []
        takers: list[RequestState] = []
        taken: list[list[int]] = []
        ended: list[tuple[RequestState, str]] = []
        faults, logprobs, prompt_logprobs = result.faults, result.logprobs, result.prompt_logprobs
        for row, (state, new) in enumerate(zip(states, tokens, strict=True)):
            if state.finished:
                continue
            if row in faults:
                outputs.append(_error_output(state, faults[row]))
                ended.append((state, "error"))
                continue
            reason = stop_token = None
            if new:
                new, reason, stop_token = take_tokens(state, new)
                takers.append(state)
                taken.append(new)
                if reason is not None:
                    ended.append((state, reason))
            elif row not in prompt_logprobs:
                continue
            outputs.append(
                RowOutput(
                    state.request.request_id,
                    new,
                    reason,
                    stop_token,
                    state.num_cached_tokens,
                    logprobs.get(row),
                    prompt_logprobs.get(row),
                )
            )
        self._residency.append(takers, taken)
        for state, reason in ended:
            self._end(state, reason)
        return outputs

    def _require_single_tokens(self, flight: PlanInFlight, tokens: list[list[int]]) -> None:
        """Refuse several tokens of a row that a later plan holds: that plan counts on one."""
        several = np.fromiter(map(len, tokens), np.int64, len(tokens)) > 1
        if not several.any():
            return
        held = self._table.still_occupied(flight.slots, flight.generations) & (
            self._table.plans[flight.slots] > 1
        )
        if (several & held).any():
            row = int(np.flatnonzero(several & held)[0])
            message = f"row {row} has {len(tokens[row])} tokens while a later plan with it is in flight"
            raise InvalidResult("tokens", message)

    def _end(self, state: RequestState, reason: str) -> None:
        """Take a request out of the books; its slot and blocks stay until no plan in flight holds them."""
        state.finished = True
        del self._requests[state.request.request_id]
        self._residency.end(state, FAILED if reason == "error" else ENDED)
        self._finished[reason] += 1
        self._rate.record()


def _error_output(state: RequestState, message: str) -> RowOutput:
    cached = max(state.num_cached_tokens, 0)
    return RowOutput(state.request.request_id, [], "error", num_cached_tokens=cached, error=message)


def _new_row(state: RequestState) -> NewRow:
    request = state.request
    return NewRow(
        state.slot, request.request_id, state.known_token_ids(), state.num_prompt_tokens, request.payload
    )
