"""Plans that were made and not yet updated; knows nothing of why a plan is as it is."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from llm_scheduler.errors import InvalidResult, PlanOrderError
from llm_scheduler.plan import Int32, Int64, Ragged, StepPlan, StepResult
from llm_scheduler.request import RequestState


@dataclass(frozen=True, slots=True, eq=False)
class PlanInFlight:
    """A plan and who its rows were when it was made.

    Attributes:
        plan: The plan.
        slots: int64[R], ``plan.slots`` ready to index with.
        states: The request of each row; not to be changed, plans may share it.
        request_ids: Its id.
        generations: int64[R], each slot's generation.
        transfer_batch: For ``KVCache.finish_transfers``, or None.
        made_s: When it was made, on the scheduler's clock.
    """

    plan: StepPlan
    slots: Int64
    states: list[RequestState]
    request_ids: list[str]
    generations: Int64
    transfer_batch: int | None
    made_s: float


class PlansInFlight:
    """A short queue of plans, oldest first."""

    def __init__(self, depth: int) -> None:
        self._depth = depth
        self._plans: deque[PlanInFlight] = deque()

    def __len__(self) -> int:
        return len(self._plans)

    def require_room(self) -> None:
        """Refuse a plan beyond the depth.

        Raises:
            PlanOrderError: As many plans as allowed are in flight.
        """
        if len(self._plans) >= self._depth:
            raise PlanOrderError(f"{len(self._plans)} plans are in flight: update or fail the oldest first")

    def add(self, flight: PlanInFlight) -> None:
        """Append the newest plan."""
        self._plans.append(flight)

    def oldest(self, plan: StepPlan) -> PlanInFlight:
        """Return the oldest plan in flight, which must be this one.

        Raises:
            PlanOrderError: It is not.
        """
        if not self._plans or self._plans[0].plan.step_id != plan.step_id:
            expected = f"step {self._plans[0].plan.step_id}" if self._plans else "none"
            raise PlanOrderError(f"step {plan.step_id} is not the oldest in flight ({expected})")
        return self._plans[0]

    def find(self, plan: StepPlan) -> PlanInFlight:
        """Return the plan's entry wherever it is.

        Raises:
            PlanOrderError: The plan is not in flight.
        """
        for flight in self._plans:
            if flight.plan.step_id == plan.step_id:
                return flight
        raise PlanOrderError(f"step {plan.step_id} is not in flight")

    def remove(self, flight: PlanInFlight) -> None:
        """Take out an entry."""
        self._plans.remove(flight)


@dataclass(frozen=True, slots=True, eq=False)
class RowTokens:
    """The tokens of a result, checked.

    Attributes:
        values: int32[M].
        offsets: int32[R + 1].
        lengths: int64[R].
    """

    values: Int32
    offsets: Int32
    lengths: Int64

    def row(self, row: int) -> list[int]:
        """Return the tokens of one row."""
        tokens: list[int] = self.values[self.offsets[row] : self.offsets[row + 1]].tolist()
        return tokens


def checked_tokens(plan: StepPlan, result: StepResult) -> RowTokens:
    """Check a result against its plan and return the tokens of each row.

    Raises:
        InvalidResult: The result is of another step, has another number of rows, yields tokens for a row that
            does not sample, none for one that does and has no fault, or more than the drafts of a row allow.
    """
    if result.step_id != plan.step_id:
        raise InvalidResult("step_id", f"{result.step_id}, the plan is {plan.step_id}")
    tokens = _checked_ragged("tokens", plan, result.tokens)
    _check_rows("faults", plan, result.faults.keys())
    _check_rows("logprobs", plan, result.logprobs.keys())
    _check_rows("prompt_logprobs", plan, result.prompt_logprobs.keys())
    wrong = (tokens.lengths > 0) != plan.samples
    if wrong.any():
        row = next((int(r) for r in np.flatnonzero(wrong) if int(r) not in result.faults), None)
        if row is not None:
            message = f"row {row} has {tokens.lengths[row]} tokens, samples is {plan.samples[row]}"
            raise InvalidResult("tokens", message)
    if plan.drafts is not None:
        num_drafts = np.diff(plan.drafts.offsets)
        above = (num_drafts > 0) & (tokens.lengths > num_drafts + 1)
        if above.any():
            row = int(np.flatnonzero(above)[0])
            message = f"row {row} has {tokens.lengths[row]} tokens from {num_drafts[row]} drafts"
            raise InvalidResult("tokens", message)
    if result.drafts is not None:
        _checked_ragged("drafts", plan, result.drafts)
    return tokens


def _checked_ragged(field: str, plan: StepPlan, ragged: Ragged) -> RowTokens:
    values, offsets = np.asarray(ragged.values), np.asarray(ragged.offsets)
    if values.ndim != 1 or (values.size and not np.issubdtype(values.dtype, np.integer)):
        raise InvalidResult(field, "expected integer values in one dimension")
    if offsets.shape != (plan.num_rows + 1,) or offsets[0] != 0 or offsets[-1] != len(values):
        message = f"the offsets do not describe {plan.num_rows} rows of {len(values)} values"
        raise InvalidResult(field, message)
    lengths = np.diff(offsets).astype(np.int64)
    if (lengths < 0).any():
        raise InvalidResult(field, "the offsets descend")
    if values.size and (values.min() < 0 or values.max() >= 2**31):
        raise InvalidResult(field, "expected token ids from 0 to 2**31 - 1")
    return RowTokens(values.astype(np.int32, copy=False), offsets.astype(np.int32, copy=False), lengths)


def _check_rows(field: str, plan: StepPlan, rows: Iterable[int]) -> None:
    for row in rows:
        if not 0 <= row < plan.num_rows:
            raise InvalidResult(field, f"row {row} is outside the plan's {plan.num_rows} rows")
