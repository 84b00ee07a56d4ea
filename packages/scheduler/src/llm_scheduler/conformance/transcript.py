"""One line for each thing that happened, for people; knows nothing of rules."""

from __future__ import annotations

from collections.abc import Mapping

from llm_scheduler.plan import RowOutput, StepPlan


def describe_plan(plan: StepPlan, names: Mapping[int, str]) -> str:
    """Return a plan as one line.

    Args:
        plan: The plan, perhaps a wrong one.
        names: Occupants of the slots before it.
    """
    names = {**names, **{new.slot: new.request_id for new in plan.admitted}}
    rows = zip(plan.slots.tolist(), plan.num_computed.tolist(), plan.num_tokens.tolist(), strict=False)
    parts = [f"{names.get(slot, '?')} in slot {slot} computes [{at}, {at + n})" for slot, at, n in rows]
    if plan.admitted:
        parts.append(f"admits {', '.join(new.request_id for new in plan.admitted)}")
    if len(plan.released):
        parts.append(f"releases {plan.released.tolist()}")
    return f"schedule -> step {plan.step_id}: {'; '.join(parts)}"


def describe_outputs(outputs: list[RowOutput]) -> str:
    """Return outputs as one line."""
    if not outputs:
        return "no outputs"
    parts = []
    for output in outputs:
        reason = f" ({output.finish_reason})" if output.finish_reason else ""
        parts.append(f"{output.request_id} {output.tokens}{reason}")
    return ", ".join(parts)
