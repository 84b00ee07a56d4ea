"""Processes are killed while streams run. The engine's: they go on, with the text of an undisturbed run."""

from __future__ import annotations

import http.client
import json
import os
import random
import signal
import threading
import time

import httpx

NUM_STREAMS, NUM_KILLS, TOKENS = 50, 5, 24
FRONT_END_DIES_AT = 1  # with the second death of the core
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
        self.is_cut = False

    def run(self) -> None:
        url = f"{self._url}/v1/completions"
        try:
            with httpx.stream("POST", url, json=self._body, timeout=180) as response:
                for line in response.iter_lines():
                    if line:
                        self.frames.append(line.removeprefix("data: "))
        except httpx.TransportError:
            self.is_cut = True  # its front end was killed

    @property
    def text(self) -> str:
        texts = (json.loads(frame) for frame in self.frames if frame != "[DONE]")
        return "".join(frame["choices"][0]["text"] for frame in texts)


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


def probe(server, path: str) -> int:
    """A probe's status, over a connection of its own: any front end answers."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)
    try:
        connection.request("GET", path)
        return connection.getresponse().status
    finally:
        connection.close()


def test_streams_go_on_in_the_next_core(start_server):
    """The core is killed at five random moments, one of two front ends once."""
    server = start_server("--max-num-seqs", "16", "--api-workers", "2")
    undisturbed = streams(server.url)
    for client in undisturbed:
        client.join(180)
        assert client.frames[-1] == "[DONE]"
    moments = random.Random(5)
    disturbed = streams(server.url)
    for kill in range(NUM_KILLS):
        time.sleep(moments.uniform(0.5, 2.5))
        if kill == FRONT_END_DIES_AT:
            os.kill(server.front_pids()[0], signal.SIGKILL)
        core = server.core_pid()
        os.kill(core, signal.SIGKILL)
        wait_until(lambda: probe(server, "/health/ready") == 503, 3.0)  # it has 50 streams to tell of
        assert probe(server, "/health/live") == 200
        wait_until(lambda: probe(server, "/health/ready") == 200, 60.0)
        assert server.core_pid() != core
    failed = cut = 0
    for client, expected in zip(disturbed, undisturbed, strict=True):
        client.join(180)
        if client.is_cut:
            assert expected.text.startswith(client.text)
            cut += 1
        elif client.frames[-1] == "[DONE]":
            assert client.text == expected.text
        else:  # one that every kill met can be taken for their cause
            assert json.loads(client.frames[-1])["error"]["code"] == "request_failed"
            failed += 1
    assert failed <= NUM_KILLS - 1
    assert 0 < cut < NUM_STREAMS  # those of the one front end
    wait_until(lambda: len(server.front_pids()) == 2, 60.0)
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
