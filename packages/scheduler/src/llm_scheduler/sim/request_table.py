"""Writes what happened to every request as a CSV file, for other tools; knows nothing of figures."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np

from llm_scheduler.sim.recording import Outcome, Recording
from llm_scheduler.sim.workload import Float64, Workload

COLUMNS = (
    "request",
    "tenant",
    "priority",
    "outcome",
    "prompt_tokens",
    "cached_tokens",
    "output_tokens",
    "arrived_s",
    "admitted_s",
    "first_token_s",
    "last_token_s",
    "max_itl_s",
)


def write_request_table(path: str | Path, workload: Workload, recording: Recording) -> None:
    """Write one row a request, in the order of the workload; empty where something did not happen.

    Times are on the simulated clock. ``output_tokens`` is what the request got, ``cached_tokens`` what the
    prefix cache held of its prompt when it was first admitted.
    """
    log = recording.requests
    cached: list[object] = ["" if tokens < 0 else tokens for tokens in log.cached_tokens.tolist()]
    rows = zip(
        range(len(workload)),
        [workload.tenant_names[tenant] for tenant in workload.tenants.tolist()],
        workload.priorities.tolist(),
        [Outcome(outcome).name.lower() for outcome in log.outcomes.tolist()],
        workload.prompt_tokens.tolist(),
        cached,
        log.num_outputs.tolist(),
        _times(log.arrived_s),
        _times(log.admitted_s),
        _times(log.first_token_s),
        _times(log.last_token_s),
        _times(log.max_itl_s),
        strict=True,
    )
    with Path(path).open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        writer.writerows(rows)


def _times(values: Float64) -> list[object]:
    return [
        "" if missing else value for value, missing in zip(values.tolist(), np.isnan(values), strict=True)
    ]
