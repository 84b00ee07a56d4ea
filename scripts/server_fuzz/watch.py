"""Whether the server is well meanwhile: latency of its probe, memory, work left over, known answers."""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

_PAUSE_S = 0.2
_PAGE_BYTES = 4096
# Gauges that are 0 on an idle server.
_IDLE: tuple[tuple[str, dict[str, str]], ...] = (
    ("llm_stack_requests_running", {}),
    ("llm_stack_requests_waiting", {}),
)


class Liveness(threading.Thread):
    """Asks `/health/live` all the time, on connections of its own, and keeps the worst latency."""

    def __init__(self, host: str, port: int, timeout_s: float = 30.0) -> None:
        super().__init__(daemon=True)
        self.worst_s = 0.0
        self.asked = 0
        self.failures: list[str] = []
        self._address = (host, port)
        self._timeout_s = timeout_s
        self._done = threading.Event()

    def run(self) -> None:
        """Ask until `end`."""
        while not self._done.wait(_PAUSE_S):
            began_s = time.monotonic()
            try:
                status, _ = ask(*self._address, "GET", "/health/live", timeout_s=self._timeout_s)
                if status != 200:
                    self.failures.append(f"status {status}")
            except OSError as error:
                self.failures.append(f"{type(error).__name__}: {error}")
            self.worst_s = max(self.worst_s, time.monotonic() - began_s)
            self.asked += 1

    def end(self) -> None:
        """Stop asking."""
        self._done.set()
        self.join()


def ask(
    host: str, port: int, method: str, path: str, body: object = None, timeout_s: float = 60.0
) -> tuple[int, bytes]:
    """One plain request: status and body."""
    connection = http.client.HTTPConnection(host, port, timeout=timeout_s)
    try:
        headers = {} if body is None else {"content-type": "application/json"}
        connection.request(method, path, None if body is None else json.dumps(body), headers)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def known_answer(host: str, port: int, model: str, *, gives_vectors: bool) -> str:
    """What the server says to a request whose answer never changes; vectors to three places."""
    path = "/v1/embeddings" if gives_vectors else "/v1/completions"
    vectors = {"model": model, "input": "the cat sat on the mat"}
    text = {"model": model, "prompt": "The capital of France is", "temperature": 0, "max_tokens": 3}
    status, raw = ask(host, port, "POST", path, vectors if gives_vectors else text)
    if status != 200:
        return f"status {status}: {raw[:300]!r}"
    answer = json.loads(raw)
    if gives_vectors:
        return str([round(number, 3) for number in answer["data"][0]["embedding"]])
    return str(answer["choices"][0]["text"])


def left_over(host: str, port: int, timeout_s: float) -> list[str]:
    """Gauges that do not come back to 0 within the time."""
    ends_s = time.monotonic() + timeout_s
    while True:
        status, raw = ask(host, port, "GET", "/metrics")
        found = [f"/metrics answers {status}"] if status != 200 else _not_idle(raw.decode())
        if not found or time.monotonic() > ends_s:
            return found
        time.sleep(0.2)


def _not_idle(text: str) -> list[str]:
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    by_name = {(sample.name, sample.labels.get("state")): sample.value for sample in samples}
    used = by_name.get(("llm_stack_kv_blocks", "used"), 0.0)
    pinned = by_name.get(("llm_stack_kv_blocks_pinned", None), 0.0)
    # `cache_control` keeps blocks for minutes after their request, which count as used.
    left = [f"{used:g} blocks are used, of which pins keep {pinned:g}"] if used > pinned else []
    return left + [
        f"{name}{labels or ''} is {sample.value:g}"
        for name, labels in _IDLE
        for sample in samples
        if sample.name == name and labels.items() <= sample.labels.items() and sample.value
    ]


def memory_bytes(pids: Sequence[int]) -> int:
    """Resident memory of these processes together."""
    return sum(int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE_BYTES for pid in pids)


def with_children(pid: int) -> list[int]:
    """The process and its children."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [pid, *map(int, children)]
