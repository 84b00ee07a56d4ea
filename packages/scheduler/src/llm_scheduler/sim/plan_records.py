"""Turns the record of a live scheduler into a workload and into recorded steps; knows nothing of replaying.

So that what an engine went through can be simulated under another policy, and its step times be fitted.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from llm_scheduler.plan import Int32, Ragged
from llm_scheduler.recording import RecordError, steps_of
from llm_scheduler.recording.reader import RecordReader
from llm_scheduler.recording.values import decode
from llm_scheduler.sim.errors import InvalidField, TraceError
from llm_scheduler.sim.step_time import StepLoad, StepRecord
from llm_scheduler.sim.workload import RequestSpec


def is_plan_record(path: str | Path) -> bool:
    """Tell whether a file begins like the record of a scheduler; False where it cannot be read."""
    opener = gzip.open if str(path).endswith(".gz") else open
    try:
        with opener(path, "rb") as file:
            first: object = json.loads(file.readline())
    except (OSError, EOFError, ValueError, zlib.error):
        return False
    return isinstance(first, dict) and "record" in first


def step_records_of(path: str | Path) -> list[StepRecord]:
    """Return the steps of a record with the seconds they took.

    Raises:
        TraceError: The file is no record, is damaged, or holds no step.
    """
    try:
        records = [
            StepRecord(StepLoad(**{name: step[name] for name in StepLoad.__slots__}), step["seconds"])  # type: ignore[literal-required]
            for step in steps_of(path)
        ]
    except RecordError as error:
        raise TraceError(str(path), 0, "", str(error)) from error
    if not records:
        raise TraceError(str(path), 0, "", "holds no step that ended")
    return records


@dataclass(slots=True)
class _Live:
    """A request of the record: where it was added and what came of it."""

    line: int
    arrival_s: float
    fields: dict[str, Any]
    num_outputs: int = 0
    reason: str | None = None


@dataclass(slots=True)
class _Rows:
    """Who has which slot, and the rows of the plans in flight."""

    at_slot: dict[int, str] = field(default_factory=dict)
    of_step: dict[int, list[str]] = field(default_factory=dict)


def read_plan_record(path: str | Path) -> Iterator[RequestSpec]:
    """Read the requests that a live scheduler took, with the prompts and output lengths they had.

    A request arrives when it was added. One that was cut short keeps the tokens it had got; one that got none
    or was refused is left out. The salt stands for all that kept it from sharing blocks: salt and adapter.

    Raises:
        TraceError: The file is no record, or is damaged.
    """
    try:
        requests = _requests(path)
    except RecordError as error:
        raise TraceError(str(path), 0, "", str(error)) from error
    first_s = requests[0].arrival_s if requests else 0.0
    for live in requests:
        if live.num_outputs:
            try:
                yield _spec(live, live.arrival_s - first_s)
            except InvalidField as error:
                raise TraceError(str(path), live.line, error.field, error.message) from error


def _requests(path: str | Path) -> list[_Live]:
    requests: list[_Live] = []
    live: dict[str, _Live] = {}
    rows = _Rows()
    with RecordReader(path) as reader:
        for line, entry in reader.calls():
            try:
                if "raised" not in entry:
                    _take_call(line, entry, requests, live, rows)
            except (KeyError, TypeError, ValueError) as error:
                raise RecordError(str(path), line, f"no call: {error!r}") from error
    return requests


def _take_call(
    line: int, entry: dict[str, Any], requests: list[_Live], live: dict[str, _Live], rows: _Rows
) -> None:
    """Follow one call of the record."""
    call = entry["call"]
    if call == "add":
        fields = {name: decode(value) for name, value in entry["request"].items()}
        requests.append(_Live(line, float(entry["at_s"]), fields))
        live[fields["request_id"]] = requests[-1]
    elif call == "schedule" and entry["plan"]:
        plan = entry["plan"]
        rows.at_slot.update((new["slot"], new["request_id"]) for new in plan.get("admitted", ()))
        rows.of_step[plan["step_id"]] = [rows.at_slot[slot] for slot in plan["slots"]]
    elif call == "update":
        tokens: Ragged = decode(entry["result"]["tokens"])
        for name, count in zip(
            rows.of_step.pop(entry["step"]), np.diff(tokens.offsets).tolist(), strict=True
        ):
            if name in live:
                live[name].num_outputs += count
    for name, reason in entry.get("ends", ()):
        live.pop(name).reason = reason


def _spec(live: _Live, arrival_s: float) -> RequestSpec:
    fields = live.fields
    prompt: Int32 = np.asarray(fields["token_ids"], np.int32)
    outputs = min(live.num_outputs, int(fields["max_tokens"]))
    deadline_s = fields.get("deadline_s")
    left_s = None if deadline_s is None else deadline_s - live.arrival_s
    keys = (fields.get("salt") or b"").hex(), fields.get("lora") or ""
    return RequestSpec(
        arrival_s=arrival_s,
        prompt_tokens=len(prompt),
        token_ids=prompt,
        output_tokens=outputs,
        max_tokens=None if live.reason == "length" else int(fields["max_tokens"]),
        tenant=fields.get("tenant", ""),
        priority=fields.get("priority", 0),
        deadline_s=left_s if left_s is None or left_s > 0 else None,
        salt="/".join(keys) if any(keys) else None,
    )
