"""The access log: one line a request, as text or JSON. Knows records, not how they come about."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from llm_stack_server.observing.background import BackgroundQueue
from llm_stack_server.observing.record import RequestRecord

Value: TypeAlias = str | int | float | bool | list[str] | None

_CAPACITY = 8192  # lines; about 4 MiB
_BATCH = 256
_ATOMIC_BYTES = 4096  # a pipe takes so many at once, with no other writer's between them
_CLOSE_S = 2.0
_PLAIN = re.compile(r"[A-Za-z0-9_.:/{}+\-]+")


def fields_of(record: RequestRecord) -> dict[str, Value]:
    """What a line tells. Always the same names, in the same order; None where there is nothing to tell."""
    trace = record.trace
    return {
        "time": _utc(record.began_unix_ns + int(record.duration_s * 1e9)),
        "request_id": record.request_id,
        "method": record.method,
        "route": record.route,
        "status": record.status,
        "outcome": record.outcome,
        "error": record.error,
        "duration_s": _rounded(record.duration_s),
        "queue_s": _rounded(record.queue_s),
        "ttft_s": _rounded(record.ttft_s),
        "prompt_tokens": record.prompt_tokens,
        "cached_tokens": record.cached_tokens,
        "output_tokens": record.output_tokens,
        "finish_reasons": list(dict.fromkeys(record.finish_reasons)),
        "stream": record.is_stream,
        "bytes_sent": record.bytes_sent,
        "key": record.key_name,
        "model": record.model,
        "trace_id": None if trace is None else trace.trace_id,
        "span_id": None if trace is None else trace.span_id,
    }


def json_line(fields: Mapping[str, Value]) -> str:
    """One line of JSON, in ASCII: no value can end the line or move a terminal's cursor."""
    return json.dumps(fields, separators=(",", ":"))


def text_line(fields: Mapping[str, Value]) -> str:
    """One line of ``name=value``, without the fields that have none. Values beyond plain words are quoted."""
    return " ".join(
        f"{name}={_word(value)}" for name, value in fields.items() if value is not None and value != []
    )


FORMATS: Mapping[str, Callable[[Mapping[str, Value]], str]] = {"text": text_line, "json": json_line}


class AccessLog:
    """Writes lines to a file descriptor. A reader that does not read loses lines, and blocks nothing."""

    def __init__(
        self, descriptor: int, style: str, on_dropped: Callable[[int], None], *, capacity: int = _CAPACITY
    ) -> None:
        """Write to ``descriptor`` in the ``style`` of `FORMATS`; tell ``on_dropped`` of lost lines."""
        self._descriptor = descriptor
        self._format = FORMATS[style]
        self._queue: BackgroundQueue[RequestRecord] = BackgroundQueue(
            "access log", self._write, on_dropped, capacity=capacity, batch=_BATCH
        )

    def __call__(self, record: RequestRecord) -> None:
        """Log the request."""
        self._queue.put(record)

    def close(self) -> None:
        """Write what waits."""
        self._queue.close(_CLOSE_S)

    def _write(self, records: Sequence[RequestRecord]) -> int:
        lines = [self._format(fields_of(record)).encode() + b"\n" for record in records]
        lost = 0
        piece: list[bytes] = []
        for line in lines:
            if piece and sum(map(len, piece)) + len(line) > _ATOMIC_BYTES:
                lost += self._send(piece)
                piece = []
            piece.append(line)
        return lost + self._send(piece)

    def _send(self, lines: Sequence[bytes]) -> int:
        data = memoryview(b"".join(lines))
        try:
            while data:
                data = data[os.write(self._descriptor, data) :]
        except OSError:  # nobody reads any more
            return len(lines)
        return 0


def _utc(unix_ns: int) -> str:
    seconds, rest_ns = divmod(unix_ns, 10**9)
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(seconds))}.{rest_ns // 10**6:03d}Z"


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 6)


def _word(value: Value) -> str:
    text = ",".join(value) if isinstance(value, list) else json.dumps(value).strip('"')
    if isinstance(value, str):
        return value if _PLAIN.fullmatch(value) else json.dumps(value)
    return text
