"""Moves waiting requests into slots, in order, while there is room; knows nothing of results."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from llm_scheduler.caps import Caps
from llm_scheduler.config import SchedulerConfig
from llm_scheduler.metering import Meter
from llm_scheduler.plan import Int64
from llm_scheduler.request import Request, RequestState
from llm_scheduler.residency import Residency
from llm_scheduler.slots import SlotTable
from llm_scheduler.waiting import WaitingQueue


class Admitter:
    """Decides who moves in.

    Args:
        config: Limits.
        table: The slots.
        waiting: The queue to take from.
        residency: Gives slots and blocks.
        meter: Settled before the order is asked for, since the order may depend on it.
        caps: Asked who may move in and how far a prompt may go.
    """

    def __init__(
        self,
        config: SchedulerConfig,
        table: SlotTable,
        waiting: WaitingQueue,
        residency: Residency,
        meter: Meter,
        caps: Caps,
    ) -> None:
        self._most_tokens_per_row = config.long_prefill_tokens or config.max_num_batched_tokens
        self._table = table
        self._waiting = waiting
        self._residency = residency
        self._meter = meter
        self._caps = caps
        self._quotas = residency.quotas
        self._full_tenants: set[str] = set()
        self._num_refused_by_quota = 0

    def admit_urgent(self) -> None:
        """Move in requests that are more urgent than a running one, which loses its place where it is short.

        They run like any other from then on, so a chunk of theirs comes before one of a less urgent request.
        A request that aging put first preempts nobody. While one waits, urgent requests only take the places
        of less urgent ones, so that they cannot keep it waiting beyond that.
        """
        running = self._residency.running
        if not len(running) or not self._waiting.is_more_urgent_than(running.last()):
            return
        if not self._begin_round():
            return
        while len(running) and self._waiting.is_more_urgent_than(running.last()):
            victim = running.last()
            state = self._waiting.pick_more_urgent(victim.urgency, self._filter())
            if state is None or state.tokens_in_flight:
                return
            has_aged = self._has_aged()
            is_tried = not has_aged and bool(self._table.num_free)
            if is_tried and self._residency.move_in(state):
                continue
            if self._quotas.refuses(state) or (not is_tried and self._quotas.keeps_out(state)):
                self._make_room_in_quota(state)
                continue
            if self._table.num_ended:
                return  # What ended requests still hold comes back by itself, a step from now.
            if not self._residency.could_fit(state):
                return
            self._residency.preempt(victim)
            if has_aged:
                self._has_moved_in(state)

    def admit(self, budget: int) -> tuple[Int64, Int64]:
        """Move in requests in order.

        Args:
            budget: Tokens that the step has left.

        Returns:
            int64[A], the slots taken, and int64[A], the tokens each is to compute.
        """
        slots: list[int] = []
        num_tokens: list[int] = []
        if budget <= 0 or not self._table.num_free or not self._begin_round():
            return np.array([], np.int64), np.array([], np.int64)
        while budget > 0 and self._table.num_free:
            state = self._waiting.pick(self._filter())
            if state is None or state.tokens_in_flight:
                break
            if not self._residency.move_in(state):
                if not self._quotas.refuses(state):
                    break
                self._pass_over(state)
                continue
            granted = 0 if state.is_loading else self._granted(state, budget)
            if not granted:
                continue  # It holds its slot, and a later plan names it as admitted.
            self._meter.charge_ahead(state, granted)
            slots.append(state.slot)
            num_tokens.append(granted)
            budget -= granted
        return np.array(slots, np.int64), np.array(num_tokens, np.int64)

    def _has_moved_in(self, state: RequestState) -> bool:
        return bool(self._table.num_free) and self._residency.move_in(state)

    def _filter(self) -> Callable[[Request], bool] | None:
        """Return what ``WaitingQueue.pick`` asks; None where nothing keeps anybody out."""
        if self._full_tenants:
            return self._admits
        return self._caps.admits if self._caps.limits_admission else None

    def _admits(self, request: Request) -> bool:
        return request.tenant not in self._full_tenants and self._caps.admits(request)

    def _has_aged(self) -> bool:
        """Tell whether a request waits that aging put first and that its own tenant does not keep out."""
        return any(not self._quotas.keeps_out(state) for state in self._waiting.aged)

    def _make_room_in_quota(self, state: RequestState) -> None:
        """Let a less urgent request of the same tenant give way, or pass the tenant over."""
        victim = self._quotas.victim_for(state)
        if victim is None:
            self._pass_over(state)
        else:
            self._residency.preempt(victim)
            self._has_moved_in(state)

    def _pass_over(self, state: RequestState) -> None:
        """Let no request of its tenant pass in this round: the order within a tenant stays."""
        self._full_tenants.add(state.request.tenant)
        self._num_refused_by_quota += 1

    def _begin_round(self) -> bool:
        self._full_tenants.clear()
        # A quota has room again without an event: a tenant that was refused is asked for in every round.
        if not self._waiting.begin_round(self._caps.version + self._num_refused_by_quota):
            return False
        self._meter.settle()
        return True

    def _granted(self, state: RequestState, budget: int) -> int:
        """Return the tokens that a request which just moved in gets in this step."""
        start = int(self._table.computed[state.slot])
        granted = min(state.num_known_tokens - start, budget, self._most_tokens_per_row)
        if self._caps.limits_prompts and start < state.num_prompt_tokens:
            return self._caps.limit(state.request, start, granted)
        return granted
