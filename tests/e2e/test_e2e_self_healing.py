"""The engine's process is killed while streams run: they go on, and their text is an undisturbed run's."""

from __future__ import annotations

import json
import os
import random
import signal
import threading
import time

import httpx

NUM_STREAMS, NUM_KILLS, TOKENS = 50, 5, 24
SUBJECTS = ("rivers", "bread", "the moon", "old ships", "winter", "bees", "glass", "trains", "music", "salt")


class Client(threading.Thread):
    """Reads one stream to its end; `frames` are its events as text."""

    def __init__(self, url: str, number: int) -> None:
        super().__init__(daemon=True)
        self._url = url
        self._body = {
            "prompt": f"{number}. A short text about {SUBJECTS[number % len(SUBJECTS)]}:",
            "max_tokens": TOKENS + number % 5,
            "ignore_eos": True,
            "temperature": 0,
            "stream": True,
        }
        self.frames: list[str] = []

    def run(self) -> None:
        with httpx.stream("POST", f"{self._url}/v1/completions", json=self._body, timeout=180) as response:
            self.frames = [line.removeprefix("data: ") for line in response.iter_lines() if line]

    @property
    def text(self) -> str:
        return "".join(json.loads(frame)["choices"][0]["text"] for frame in self.frames[:-1])


def streams(url: str) -> list[Client]:
    clients = [Client(url, number) for number in range(NUM_STREAMS)]
    for client in clients:
        client.start()
    return clients


def wait_until(condition, limit_s: float) -> float:
    """How long it took."""
    start_s = time.monotonic()
    while not condition():
        assert time.monotonic() - start_s < limit_s
        time.sleep(0.02)
    return time.monotonic() - start_s


def test_streams_go_on_in_the_next_core(start_server):
    server = start_server("--max-num-seqs", "16")
    undisturbed = streams(server.url)
    for client in undisturbed:
        client.join(180)
        assert client.frames[-1] == "[DONE]"
    moments = random.Random(5)
    disturbed = streams(server.url)
    for _ in range(NUM_KILLS):
        time.sleep(moments.uniform(0.5, 2.5))
        core = server.core_pid()
        os.kill(core, signal.SIGKILL)
        wait_until(lambda: server.http.get("/health/ready").status_code == 503, 1.0)
        assert server.http.get("/health/live").status_code == 200
        wait_until(lambda: server.http.get("/health/ready").status_code == 200, 60.0)
        assert server.core_pid() != core
    failed = 0
    for client, expected in zip(disturbed, undisturbed, strict=True):
        client.join(180)
        if client.frames[-1] == "[DONE]":
            assert client.text == expected.text
        else:  # one that every kill met can be taken for their cause
            assert json.loads(client.frames[-1])["error"]["code"] == "request_failed"
            failed += 1
    assert failed <= NUM_KILLS - 1
    metrics = server.metrics()
    assert metrics["llm_stack_core_deaths_total{}"] == NUM_KILLS
    assert metrics["llm_stack_requests_running{}"] == metrics["llm_stack_requests_waiting{}"] == 0
    assert server.used_blocks() == 0
    assert server.process.poll() is None


def test_a_core_that_keeps_dying_ends_the_server(start_server):
    server = start_server("--max-core-deaths", "2")
    client = Client(server.url, 1)
    client._body["max_tokens"] = 1500
    client.start()
    wait_until(lambda: server.metrics().get("llm_stack_requests_running{}") == 1, 30.0)
    os.kill(server.core_pid(), signal.SIGKILL)
    wait_until(lambda: server.http.get("/health/ready").status_code == 503, 1.0)
    wait_until(lambda: server.http.get("/health/ready").status_code == 200, 60.0)
    os.kill(server.core_pid(), signal.SIGKILL)
    client.join(20)
    assert json.loads(client.frames[-1])["error"]["code"] == "engine_dead"
    assert server.process.wait(20) == 1
    assert "the engine is gone" in server.log.read_text()
