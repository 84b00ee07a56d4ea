"""Results and calls that every scheduler must refuse; knows nothing of how a sequence runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import TypeAlias

import numpy as np

from llm_scheduler.errors import InvalidResult, PlanOrderError, SchedulerError
from llm_scheduler.plan import Ragged, RowOutput, StepPlan, StepResult
from llm_scheduler.protocol import Scheduler

InFlight: TypeAlias = list[tuple[StepPlan, StepResult]]
"""Plans in flight with sound results, oldest first; at least one."""
Call: TypeAlias = Callable[[Scheduler], list[RowOutput]]


def _update(plan: StepPlan, result: StepResult) -> Call:
    return lambda scheduler: scheduler.update(plan, result)


def _of_another_step(flight: InFlight) -> Call | None:
    plan, result = flight[0]
    return _update(plan, replace(result, step_id=result.step_id + 1))


def _of_too_few_rows(flight: InFlight) -> Call | None:
    plan, result = flight[0]
    return _update(plan, replace(result, tokens=Ragged.empty(plan.num_rows - 1)))


def _without_its_tokens(flight: InFlight) -> Call | None:
    plan, result = flight[0]
    if not plan.samples.any():
        return None
    return _update(plan, replace(result, tokens=Ragged.empty(plan.num_rows), faults={}))


def _with_tokens_too_many(flight: InFlight) -> Call | None:
    plan, result = flight[0]
    if plan.samples.all():
        return None
    rows = [[1]] * plan.num_rows
    return _update(plan, replace(result, tokens=Ragged.from_rows(rows), faults={}))


def _with_a_negative_token(flight: InFlight) -> Call | None:
    plan, result = flight[0]
    if not plan.samples.any():
        return None
    values = np.full(len(result.tokens.values), -1, np.int32)
    return _update(plan, replace(result, tokens=Ragged(values, result.tokens.offsets)))


def _with_a_fault_outside(flight: InFlight) -> Call | None:
    plan, result = flight[0]
    return _update(plan, replace(result, faults={plan.num_rows: "no such row"}))


def _of_a_later_plan(flight: InFlight) -> Call | None:
    return _update(*flight[1]) if len(flight) > 1 else None


def _update_of_no_plan(flight: InFlight) -> Call | None:
    plan, result = flight[-1]
    other = plan.step_id + 1
    return _update(replace(plan, step_id=other), replace(result, step_id=other))


def _failure_of_no_plan(flight: InFlight) -> Call | None:
    plan = replace(flight[-1][0], step_id=flight[-1][0].step_id + 1)
    return lambda scheduler: scheduler.fail(plan, "no such plan")


MISUSES: Mapping[str, tuple[type[SchedulerError], Callable[[InFlight], Call | None]]] = MappingProxyType(
    {
        "the result of another step": (InvalidResult, _of_another_step),
        "a result of too few rows": (InvalidResult, _of_too_few_rows),
        "a result without its tokens": (InvalidResult, _without_its_tokens),
        "a result with tokens of a row that samples none": (InvalidResult, _with_tokens_too_many),
        "a result with a negative token": (InvalidResult, _with_a_negative_token),
        "a result with a fault outside its rows": (InvalidResult, _with_a_fault_outside),
        "the result of a later plan first": (PlanOrderError, _of_a_later_plan),
        "the result of a plan that was never made": (PlanOrderError, _update_of_no_plan),
        "the failure of a plan that was never made": (PlanOrderError, _failure_of_no_plan),
    }
)
