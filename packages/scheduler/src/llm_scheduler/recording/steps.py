"""What the steps of a record computed and how long they took, to fit a step-time model; no replay needed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TypedDict

from llm_scheduler.recording.errors import RecordError
from llm_scheduler.recording.reader import RecordReader
from llm_scheduler.recording.values import Json


class StepLine(TypedDict):
    """A step, with the fields of ``llm_scheduler.sim.StepLoad`` and the seconds that it took."""

    num_prefill_tokens: int
    num_decode_rows: int
    context_tokens: int
    prefill_pairs: int
    seconds: float


def steps_of(path: str | Path) -> Iterator[StepLine]:
    """Yield the steps of a record that were updated, in that order; those that raised are left out.

    ``seconds`` is the time from the start of the planning to the end of the update, and in the overlapped
    loop from the end of the update before it: what the step added to the run.

    Raises:
        RecordError: The file is no record, or is damaged.
    """
    plans: dict[int, dict[str, list[int]]] = {}
    with RecordReader(path) as reader:
        for line, entry in reader.calls():
            try:
                step = _step(entry, plans)
            except (KeyError, TypeError) as error:
                raise RecordError(str(path), line, f"no call: {error!r}") from error
            if step is not None:
                yield step


def _step(entry: dict[str, Json], plans: dict[int, dict[str, list[int]]]) -> StepLine | None:
    plan = entry.get("plan")
    if isinstance(plan, dict):
        plans[plan["step_id"]] = plan
        return None
    if entry["call"] not in ("update", "fail") or "raised" in entry:
        return None
    landed = plans.pop(entry["step"])
    seconds = entry["seconds"]
    if entry["call"] == "fail" or not isinstance(seconds, float) or seconds <= 0:
        return None
    return _line(landed["num_tokens"], landed["num_computed"], seconds)


def _line(num_tokens: list[int], num_computed: list[int], seconds: float) -> StepLine:
    rows = list(zip(num_tokens, num_computed, strict=True))
    chunks = [(count, before) for count, before in rows if count > 1]
    decodes = [before for count, before in rows if count == 1]
    return StepLine(
        num_prefill_tokens=sum(count for count, _ in chunks),
        num_decode_rows=len(decodes),
        context_tokens=sum(decodes) + len(decodes),
        prefill_pairs=sum(count * before + count * (count + 1) // 2 for count, before in chunks),
        seconds=seconds,
    )
