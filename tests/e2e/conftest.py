"""A real `llm-stack serve` process with the real SmolLM2, and clients for it."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from prometheus_client.parser import text_string_to_metric_families

COMMAND = [sys.executable, "-m", "llm_stack_server"]
START_S = 300  # seconds on an idle machine; more on a busy one
BASE = {"model": "smollm2", "prompt": "The capital of France is", "max_tokens": 3, "temperature": 0}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class ServerProcess:
    """One server; its output goes to a file that a failure shows."""

    def __init__(self, log: Path, *flags: str) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.log = log
        arguments = [
            "serve",
            "smollm2",
            "--port",
            str(self.port),
            "--threads",
            "1",  # the machine may be shared: waiting threads would spin
            "--dtype",
            "float32",
            "--kv-cache-bytes",
            str(1 << 30),  # by default it is up to 4 GiB, and servers of several tests may run at once
            "--no-progress",
            *flags,
        ]
        self._output = log.open("wb")
        self.process = subprocess.Popen([*COMMAND, *arguments], stdout=self._output, stderr=subprocess.STDOUT)
        self.http = httpx.Client(base_url=self.url, timeout=120)

    def wait_ready(self) -> None:
        deadline_s = time.monotonic() + START_S
        while time.monotonic() < deadline_s:
            assert self.process.poll() is None, f"the server ended:\n{self.log.read_text()}"
            try:
                if self.http.get("/health/ready").status_code == 200:
                    return
            except httpx.TransportError:
                pass
            time.sleep(0.1)
        pytest.fail(f"not ready in {START_S} s:\n{self.log.read_text()}")

    def metrics(self) -> dict[str, float]:
        """Every sample, by its name and labels."""
        text = self.http.get("/metrics").text
        return {
            sample.name + json.dumps(sample.labels, sort_keys=True): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }

    def used_blocks(self) -> float:
        return self.metrics()['llm_stack_kv_blocks{"state": "used"}']

    def children(self, module: str) -> list[int]:
        """The process ids of the server's children that run this module."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        return [int(child) for child in children if module in Path(f"/proc/{child}/cmdline").read_text()]

    def core_pid(self) -> int:
        """The process id of the engine's core."""
        (core,) = self.children("llm_engine.core.core_process")
        return core

    def front_pids(self) -> list[int]:
        """The process ids of the front ends, where there are several."""
        return self.children("llm_stack_server.supervisor.worker_process")

    def base_text(self) -> str:
        response = self.http.post("/v1/completions", json=BASE)
        assert response.status_code == 200, response.text
        return str(response.json()["choices"][0]["text"])

    def stop(self) -> None:
        self.http.close()
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(30)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self._output.close()


@pytest.fixture(scope="session")
def server_process() -> type[ServerProcess]:
    """For a module that starts one of its own for several tests."""
    return ServerProcess


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """One server for all tests that leave it as they found it."""
    process = ServerProcess(tmp_path_factory.mktemp("server") / "log", "--max-num-seqs", "40")
    try:
        process.wait_ready()
        yield process
    finally:
        process.stop()


@pytest.fixture
def start_server(tmp_path: Path) -> Iterator[Callable[..., ServerProcess]]:
    """Starts servers of a test's own."""
    started: list[ServerProcess] = []

    def start(*flags: str) -> ServerProcess:
        process = ServerProcess(tmp_path / f"log{len(started)}", *flags)
        started.append(process)
        process.wait_ready()
        return process

    yield start
    for process in started:
        process.stop()


@pytest.fixture(scope="session")
def base_text(server: ServerProcess) -> str:
    return server.base_text()


@pytest.fixture
def alive(server: ServerProcess, base_text: str) -> Iterator[None]:
    """After the test the server answers as before, and nothing is left running."""
    yield
    assert server.http.get("/health").status_code == 200
    assert server.base_text() == base_text
    assert server.metrics()["llm_stack_requests_running{}"] == 0


@pytest.fixture
def client(server: ServerProcess) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=120) as made:
        yield made


@pytest.fixture
def run_cli() -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs `llm-stack` to its end."""

    def run(
        *arguments: str, stdin: str | None = None, timeout_s: float = 180
    ) -> subprocess.CompletedProcess[str]:
        options: dict[str, Any] = {"stdin": subprocess.DEVNULL} if stdin is None else {"input": stdin}
        return subprocess.run(
            [*COMMAND, *arguments],
            capture_output=True,
            text=True,
            timeout=timeout_s,
            env=os.environ,
            check=False,
            **options,
        )

    return run
