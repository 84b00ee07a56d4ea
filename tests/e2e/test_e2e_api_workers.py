"""Several front ends of one engine: one is killed, all drain, and nothing is left when the parent dies."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import threading
import time
from pathlib import Path

import httpx
import pytest

NUM_STREAMS, TOKENS = 12, 40


class Client(threading.Thread):
    """Reads one stream to its end, or to the end of its connection."""

    def __init__(self, url: str, number: int, tokens: int = TOKENS) -> None:
        super().__init__(daemon=True)
        self._url = f"{url}/v1/completions"
        self._body = {
            "prompt": f"{number}. Once upon a time",
            "max_tokens": tokens,
            "ignore_eos": True,
            "temperature": 0,
            "stream": True,
        }
        self.status = 0
        self.frames: list[str] = []
        self.is_cut = False

    def run(self) -> None:
        try:
            with httpx.stream("POST", self._url, json=self._body, timeout=180) as response:
                self.status = response.status_code
                for line in response.iter_lines():
                    if line:
                        self.frames.append(line.removeprefix("data: "))
        except httpx.TransportError:
            self.is_cut = True

    @property
    def text(self) -> str:
        texts = (json.loads(frame) for frame in self.frames if frame != "[DONE]")
        return "".join(frame["choices"][0]["text"] for frame in texts)


def started(url: str, count: int = NUM_STREAMS, tokens: int = TOKENS) -> list[Client]:
    clients = [Client(url, number, tokens) for number in range(count)]
    for client in clients:
        client.start()
    return clients


def wait_until(condition, limit_s: float) -> None:
    end_s = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < end_s
        time.sleep(0.02)


def num_sockets(pid: int) -> int:
    count = 0
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            count += str(entry.readlink()).startswith("socket:")
    return count


def is_gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def counters(server) -> dict[str, float]:
    endings = ("_total", "_count", "_bucket", "_sum")
    return {name: value for name, value in server.metrics().items() if name.split("{")[0].endswith(endings)}


@pytest.fixture(scope="module")
def workers(server_process, tmp_path_factory):
    process = server_process(tmp_path_factory.mktemp("workers") / "log", "--api-workers", "2")
    try:
        process.wait_ready()
        wait_until(lambda: "ready:" in process.log.read_text(), 60)
        yield process
    finally:
        process.stop()


def test_connections_are_spread(workers):
    fronts = workers.front_pids()
    before = [num_sockets(pid) for pid in fronts]
    clients = [httpx.Client(base_url=workers.url) for _ in range(30)]
    try:
        for client in clients:
            assert client.get("/health/ready").status_code == 200
        gained = [num_sockets(pid) - count for pid, count in zip(fronts, before, strict=True)]
    finally:
        for client in clients:
            client.close()
    assert 30 <= sum(gained) <= 32  # a worker may have one more to the engine by now
    assert min(gained) >= 3


def test_a_stored_response_is_known_to_all(workers):
    body = {"input": "Say hello.", "max_output_tokens": 4, "temperature": 0}
    made = httpx.post(f"{workers.url}/v1/responses", json=body, timeout=60).json()
    for _ in range(8):  # each over a connection of its own
        found = httpx.get(f"{workers.url}/v1/responses/{made['id']}", timeout=60)
        assert found.json() == made
    more = {**body, "previous_response_id": made["id"], "background": True, "max_output_tokens": 500}
    begun = httpx.post(f"{workers.url}/v1/responses", json=more, timeout=60).json()
    for _ in range(4):
        ended = httpx.post(f"{workers.url}/v1/responses/{begun['id']}/cancel", timeout=60)
        assert ended.json()["status"] == "cancelled"


def test_a_killed_front_end_disturbs_no_other(workers):
    undisturbed = started(workers.url)
    for client in undisturbed:
        client.join(180)
        assert client.frames[-1] == "[DONE]"
    core, fronts, before = workers.core_pid(), workers.front_pids(), counters(workers)
    disturbed = started(workers.url)
    wait_until(lambda: all(len(client.frames) > 2 for client in disturbed), 60)
    os.kill(fronts[0], signal.SIGKILL)
    for _ in range(10):  # the other one answers at once, whatever waits to be accepted
        assert httpx.get(f"{workers.url}/health/ready", timeout=10).status_code == 200
    for client, expected in zip(disturbed, undisturbed, strict=True):
        client.join(180)
        if client.is_cut:
            assert expected.text.startswith(client.text)
        else:
            assert client.text == expected.text
    assert 0 < sum(client.is_cut for client in disturbed) < NUM_STREAMS
    wait_until(lambda: len(workers.front_pids()) == 2, 30)
    assert workers.core_pid() == core  # the weights were not read again
    wait_until(lambda: "is started again" in workers.log.read_text(), 10)
    workers.http.close()  # it may have been connected to the dead one
    workers.http = httpx.Client(base_url=workers.url, timeout=120)
    wait_until(lambda: workers.used_blocks() == 0, 30)
    metrics = workers.metrics()
    assert metrics["llm_stack_requests_running{}"] == metrics["llm_stack_requests_waiting{}"] == 0
    for _ in range(4):
        after = counters(workers)
        assert [name for name, value in before.items() if after.get(name, 0) < value] == []
        before = after
    done = sum(
        value
        for name, value in after.items()
        if name.startswith("llm_stack_requests_total") and "length" in name
    )
    assert done >= NUM_STREAMS + sum(not client.is_cut for client in disturbed)


def test_all_front_ends_drain(workers):
    pids = [workers.core_pid(), *workers.front_pids()]
    clients = started(workers.url)
    wait_until(lambda: all(client.frames for client in clients), 60)
    workers.process.send_signal(signal.SIGTERM)
    for client in clients:
        client.join(60)
        assert client.frames[-1] == "[DONE]"
    assert workers.process.wait(30) == 0
    assert all(is_gone(pid) for pid in pids)


def test_limits_hold_for_all_and_nothing_outlives_the_parent(start_server):
    server = start_server(
        "--api-workers", "3", "--max-concurrent-requests", "1", "--max-queued-requests", "1"
    )
    wait_until(lambda: "ready:" in server.log.read_text(), 60)
    clients = started(server.url, 6, tokens=500)
    wait_until(lambda: sum(client.status == 429 for client in clients) == 4, 60)
    assert server.metrics()["llm_stack_queue_running{}"] == 1
    pids = [server.core_pid(), *server.front_pids()]
    assert len(pids) == 4
    server.process.kill()
    server.process.wait()
    wait_until(lambda: all(is_gone(pid) for pid in pids), 20)
