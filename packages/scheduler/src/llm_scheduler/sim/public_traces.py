"""Readers of the public trace formats; knows nothing of the simulator's own.

- Azure LLM inference: CSV with TIMESTAMP, ContextTokens, GeneratedTokens.
- Mooncake: JSONL with timestamp (ms), input_length, output_length, hash_ids (of blocks of 512 prompt tokens).
- BurstGPT: CSV with Timestamp (s), Model, Request tokens, Response tokens, Total tokens, Log Type.

The first arrival becomes 0. A request without output tokens generates one: that is what a server computes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path

from llm_scheduler.sim.errors import TraceError
from llm_scheduler.sim.trace_lines import CsvRow, csv_rows, numbered_lines
from llm_scheduler.sim.workload import RequestSpec

AZURE_COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
BURSTGPT_COLUMNS = ("Timestamp", "Model", "Request tokens", "Response tokens")
MOONCAKE_BLOCK_TOKENS = 512

_FRACTION = re.compile(r"\.(\d+)")


def read_azure_trace(path: str | Path) -> Iterator[RequestSpec]:
    """Read an Azure LLM inference trace.

    Raises:
        TraceError: The file cannot be read, or a line is malformed.
    """
    first_s: float | None = None
    for row in csv_rows(path, AZURE_COLUMNS):
        time_s = _azure_seconds(row)
        first_s = time_s if first_s is None else first_s
        yield _csv_spec(row, time_s - first_s, "TIMESTAMP", "ContextTokens", "GeneratedTokens")


def read_burstgpt_trace(path: str | Path) -> Iterator[RequestSpec]:
    """Read a BurstGPT trace; the model becomes the tenant, and failed requests (no response) are left out.

    Raises:
        TraceError: The file cannot be read, or a line is malformed.
    """
    first_s: float | None = None
    for row in csv_rows(path, BURSTGPT_COLUMNS):
        time_s = row.number("Timestamp")
        first_s = time_s if first_s is None else first_s
        if row.count("Response tokens"):
            tenant = row.text("Model")
            yield _csv_spec(row, time_s - first_s, "Timestamp", "Request tokens", "Response tokens", tenant)


def read_mooncake_trace(path: str | Path) -> Iterator[RequestSpec]:
    """Read a Mooncake trace: requests share a prompt block exactly where they share its hash id.

    Raises:
        TraceError: The file cannot be read, or a line is malformed.
    """
    first_ms: int | None = None
    for number, line in numbered_lines(path):
        fields = _json_object(str(path), number, line)
        time_ms = _count(str(path), number, fields, "timestamp")
        first_ms = time_ms if first_ms is None else first_ms
        if time_ms < first_ms:
            raise TraceError(str(path), number, "timestamp", "lies before the first line's")
        prompt_tokens = _count(str(path), number, fields, "input_length")
        if prompt_tokens < 1:
            raise TraceError(str(path), number, "input_length", "expected at least 1")
        yield RequestSpec(
            arrival_s=(time_ms - first_ms) / 1000,
            prompt_tokens=prompt_tokens,
            output_tokens=max(_count(str(path), number, fields, "output_length"), 1),
            shared=_mooncake_blocks(str(path), number, fields, prompt_tokens),
        )


def _csv_spec(
    row: CsvRow, arrival_s: float, time: str, prompt: str, output: str, tenant: str = ""
) -> RequestSpec:
    if arrival_s < 0:
        raise row.error(time, "lies before the first row's")
    prompt_tokens = row.count(prompt)
    if prompt_tokens < 1:
        raise row.error(prompt, "expected at least 1")
    output_tokens = max(row.count(output), 1)
    return RequestSpec(
        arrival_s=arrival_s, prompt_tokens=prompt_tokens, output_tokens=output_tokens, tenant=tenant
    )


def _azure_seconds(row: CsvRow) -> float:
    """Read a time as ``2023-11-16 18:15:46.6805900``, with an offset or without."""
    text = row.text("TIMESTAMP").strip()
    # fromisoformat takes up to six digits of a second; the traces have seven.
    cut = _FRACTION.sub(lambda match: "." + match.group(1)[:6].ljust(6, "0"), text)
    try:
        time = datetime.fromisoformat(cut)
    except ValueError:
        raise row.error("TIMESTAMP", f"expected a date and time, got {text!r}") from None
    return (time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp()


def _mooncake_blocks(
    path: str, number: int, fields: Mapping[str, object], prompt_tokens: int
) -> tuple[tuple[str, int], ...]:
    ids = fields.get("hash_ids", [])
    if not isinstance(ids, list) or not all(type(block) is int for block in ids):
        raise TraceError(path, number, "hash_ids", "expected a list of integers")
    expected = -(-prompt_tokens // MOONCAKE_BLOCK_TOKENS)
    if ids and len(ids) != expected:
        message = (
            f"{len(ids)} ids, input_length {prompt_tokens} has {expected} blocks of {MOONCAKE_BLOCK_TOKENS}"
        )
        raise TraceError(path, number, "hash_ids", message)
    lengths = [min(MOONCAKE_BLOCK_TOKENS, prompt_tokens - i * MOONCAKE_BLOCK_TOKENS) for i in range(len(ids))]
    return tuple((str(block), length) for block, length in zip(ids, lengths, strict=True))


def _json_object(path: str, number: int, line: str) -> Mapping[str, object]:
    try:
        found: object = json.loads(line)
    except ValueError as error:
        raise TraceError(path, number, "", f"no JSON: {error}") from error
    if not isinstance(found, dict):
        raise TraceError(path, number, "", "expected an object")
    return found


def _count(path: str, number: int, fields: Mapping[str, object], name: str) -> int:
    value = fields.get(name)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**53:
        raise TraceError(path, number, name, f"expected an integer, at least 0, got {value!r}")
    return value
