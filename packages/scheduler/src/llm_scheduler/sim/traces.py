"""Chooses the reader of a trace file; knows nothing of what the readers do."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum
from itertools import islice
from pathlib import Path
from types import MappingProxyType

from llm_scheduler.sim.errors import TraceError
from llm_scheduler.sim.json_trace import read_json_trace
from llm_scheduler.sim.plan_records import is_plan_record, read_plan_record
from llm_scheduler.sim.public_traces import read_azure_trace, read_burstgpt_trace, read_mooncake_trace
from llm_scheduler.sim.trace_lines import numbered_lines
from llm_scheduler.sim.workload import RequestSpec, Workload


class TraceFormat(StrEnum):
    """Formats of trace files."""

    JSONL = "jsonl"
    AZURE = "azure"
    MOONCAKE = "mooncake"
    BURSTGPT = "burstgpt"
    RECORD = "record"
    """What ``llm_scheduler.recording`` wrote of a live scheduler."""


_READERS: Mapping[TraceFormat, Callable[[str | Path], Iterable[RequestSpec]]] = MappingProxyType(
    {
        TraceFormat.JSONL: read_json_trace,
        TraceFormat.AZURE: read_azure_trace,
        TraceFormat.MOONCAKE: read_mooncake_trace,
        TraceFormat.BURSTGPT: read_burstgpt_trace,
        TraceFormat.RECORD: read_plan_record,
    }
)


def read_trace(
    path: str | Path, trace_format: TraceFormat | None = None, *, max_requests: int | None = None
) -> Workload:
    """Read a trace file.

    Args:
        path: The file.
        trace_format: Its format, or None to tell it by the first line.
        max_requests: Read only so many requests.

    Raises:
        TraceError: The file cannot be read, or a line is malformed; it names line and field.
        InvalidWorkload: The file holds no request.
    """
    chosen = trace_format or detect_format(path)
    return Workload.from_specs(list(islice(_READERS[chosen](path), max_requests)))


def detect_format(path: str | Path) -> TraceFormat:
    """Tell the format of a trace file by its first line.

    Raises:
        TraceError: The file cannot be read, or looks like none of the formats.
    """
    if is_plan_record(path):
        return TraceFormat.RECORD
    number, line = next(iter(numbered_lines(path)))
    if line.lstrip().startswith("{"):
        try:
            names = json.loads(line).keys()
        except ValueError as error:
            raise TraceError(str(path), number, "", f"no JSON: {error}") from error
        return TraceFormat.MOONCAKE if "input_length" in names else TraceFormat.JSONL
    if "ContextTokens" in line:
        return TraceFormat.AZURE
    if "Request tokens" in line:
        return TraceFormat.BURSTGPT
    formats = ", ".join(TraceFormat)
    raise TraceError(str(path), number, "", f"looks like none of {formats}")
