"""Makes the plan of a step: which rows run, how far, and what the worker must know; takes no results."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from llm_kvcache import KVCache

from llm_scheduler.admitting import Admitter
from llm_scheduler.budget import share_budget
from llm_scheduler.caps import Caps
from llm_scheduler.config import SchedulerConfig
from llm_scheduler.drafts import Drafts
from llm_scheduler.growing import Grower
from llm_scheduler.plan import Int64, NewRow, StepPlan
from llm_scheduler.request import RequestState
from llm_scheduler.residency import Residency
from llm_scheduler.rows import PlannedRows
from llm_scheduler.slots import SlotTable
from llm_scheduler.waiting import WaitingQueue


@dataclass(frozen=True, slots=True, eq=False)
class Planned:
    """A plan with what does not go to the worker.

    Attributes:
        plan: The plan.
        slots: int64[R], its slots.
        transfer_batch: For ``KVCache.finish_transfers``, or None.
    """

    plan: StepPlan
    slots: Int64
    transfer_batch: int | None


class Planner:
    """Running rows first, then waiting requests, within the token budget.

    Args:
        config: Limits.
        cache: Asked for the transfers that are due.
        table: The slots.
        waiting: The queue; only asked whether somebody waits.
        residency: Who runs, and who is new to the worker.
        admitter: Moves waiting requests in.
        caps: Limit prompts.
        drafts: Proposals for running rows.
    """

    def __init__(
        self,
        config: SchedulerConfig,
        cache: KVCache,
        table: SlotTable,
        waiting: WaitingQueue,
        residency: Residency,
        admitter: Admitter,
        caps: Caps,
        drafts: Drafts,
    ) -> None:
        self._budget = config.max_num_batched_tokens
        self._most_tokens_per_row = config.long_prefill_tokens or config.max_num_batched_tokens
        self._cache = cache
        self._table = table
        self._waiting = waiting
        self._residency = residency
        self._grower = Grower(cache, table, residency)
        self._admitter = admitter
        self._caps = caps
        self._drafts = drafts

    def plan(self, step_id: int) -> Planned | None:
        """Plan a step and count it as under way.

        Returns:
            None where nothing can run.
        """
        self._admitter.admit_urgent()
        rows, short_of_blocks = self._plan_running()
        if not short_of_blocks and len(self._waiting):
            slots, num_tokens = self._admitter.admit(self._budget - rows.total_tokens)
            if len(slots):
                rows = rows.then(PlannedRows.without_blocks(slots, num_tokens, len(rows.blocks)))
        if not len(rows):
            return None
        rows, admitted = self._residency.introduce(rows)
        rows = rows.single_tokens_first()
        return self._launch(step_id, rows, admitted)

    def _plan_running(self) -> tuple[PlannedRows, bool]:
        """Plan the running rows; also tell whether one of them found no blocks."""
        slots = self._residency.running_slots()
        wanted = self._table.tokens_wanted(slots)
        if self._caps.limits_prompts:
            self._limit_prompts(slots, wanted)
        num_drafts = self._drafts.extend(slots, wanted, self._budget, self._most_tokens_per_row)
        granted = share_budget(wanted, self._budget, self._most_tokens_per_row, num_drafts)
        chosen = granted > 0
        if not chosen.all():
            slots, granted = slots[chosen], granted[chosen]
        return self._grower.grow(slots, granted)

    def _limit_prompts(self, slots: Int64, wanted: Int64) -> None:
        """Lower what rows with a prompt want to what the caps let pass."""
        table = self._table
        in_prompt = np.flatnonzero((table.computed[slots] < table.prompt[slots]) & (wanted > 0))
        is_contended = len(in_prompt) + self._waiting.num_ready > 1
        self._caps.begin_step(self._budget, is_contended)
        most = min(self._budget, self._most_tokens_per_row)
        for row, state in zip(in_prompt.tolist(), table.states_at(slots[in_prompt]), strict=True):
            start = int(table.computed[state.slot])
            wanted[row] = self._caps.limit(state.request, start, min(int(wanted[row]), most))

    def _launch(self, step_id: int, rows: PlannedRows, admitted: list[RequestState]) -> Planned:
        """Make the plan; count its tokens as computed and its samples as known from now on."""
        table, slots = self._table, rows.slots
        num_computed = table.computed[slots]
        num_tokens = rows.num_tokens.astype(np.int32)
        end = num_computed + num_tokens
        beyond = end - table.known[slots] - table.in_flight[slots]
        samples = beyond >= 0
        drafts = None
        if (beyond > 0).any():
            drafts = self._drafts.launch(slots, np.maximum(beyond, 0).astype(np.int64))
        table.computed[slots] = end
        table.in_flight[slots] += samples
        table.plans[slots] += 1
        transfers = self._cache.take_transfers()
        plan = StepPlan(
            step_id=step_id,
            slots=slots.astype(np.int32),
            num_tokens=num_tokens,
            num_computed=num_computed,
            samples=samples,
            new_blocks=rows.blocks,
            admitted=[_new_row(state) for state in admitted],
            released=table.drain_released(),
            transfers=transfers.moves,
            drafts=drafts,
        )
        return Planned(plan, slots, transfers.batch)


def _new_row(state: RequestState) -> NewRow:
    request = state.request
    return NewRow(
        state.slot, request.request_id, state.known_token_ids(), state.num_prompt_tokens, request.payload
    )
