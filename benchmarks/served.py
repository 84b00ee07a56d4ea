"""A server under measurement: its start, its processes, what they use. Knows nothing of what it is asked."""

from __future__ import annotations

import os
import resource
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

_CORE_MARKS = (b"llm_engine.core.core_process", b"EngineCore")
_TICK_S = 1 / os.sysconf("SC_CLK_TCK")
_FILES = 65_536


@dataclass(frozen=True, slots=True)
class Use:
    """What a set of processes has used and holds.

    Attributes:
        cpu_s: User and system time.
        rss_kib: Resident memory.
        num_fds: Open descriptors.
    """

    cpu_s: float
    rss_kib: int
    num_fds: int


class Served:
    """A server process and its children, on a port of this machine.

    Args:
        command: Its command line; "{port}" becomes the port.
        log: Gets its output.
        environment: Variables beside those of this process.
        ready_path: Answers 200 once requests are served.
    """

    def __init__(
        self,
        command: Sequence[str],
        log: Path,
        environment: Mapping[str, str] | None = None,
        ready_path: str = "/health/ready",
    ) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = int(probe.getsockname()[1])
        self._ready_url = f"http://127.0.0.1:{self.port}{ready_path}"
        self._log = log
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                [part.replace("{port}", str(self.port)) for part in command],
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, **(environment or {})},
                start_new_session=True,
            )

    def wait_ready(self, limit_s: float = 900.0) -> None:
        """Wait until requests are served; raises `RuntimeError` with the log where that does not come."""
        end_s = time.monotonic() + limit_s
        while time.monotonic() < end_s and self._process.poll() is None:
            try:
                with urllib.request.urlopen(self._ready_url, timeout=5) as answer:
                    if answer.status == 200:
                        return
            except (urllib.error.URLError, OSError):
                time.sleep(0.2)
        raise RuntimeError(f"the server is not ready:\n{self._log.read_text()[-3000:]}")

    def metrics(self) -> dict[str, float]:
        """Every sample of /metrics by its name and labels, as they are written."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=30) as answer:
            lines = answer.read().decode().splitlines()
        pairs = (line.rpartition(" ") for line in lines if not line.startswith("#"))
        return {name: float(value) for name, _, value in pairs}

    def core(self) -> Use:
        """Of the engine's core."""
        return _use(pid for pid in self._pids() if _is_core(pid))

    def front(self) -> Use:
        """Of all other processes."""
        return _use(pid for pid in self._pids() if not _is_core(pid))

    def stop(self) -> None:
        """End it, by force after 20 s."""
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def _pids(self) -> Iterator[int]:
        waiting = [self._process.pid]
        while waiting:
            pid = waiting.pop()
            yield pid
            for task in Path(f"/proc/{pid}/task").iterdir():
                waiting += map(int, (task / "children").read_text().split())


def _is_core(pid: int) -> bool:
    command = Path(f"/proc/{pid}/cmdline").read_bytes()
    return any(mark in command for mark in _CORE_MARKS)


def _use(pids: Iterator[int]) -> Use:
    cpu_s, rss_kib, num_fds = 0.0, 0, 0
    for pid in pids:
        folder = Path(f"/proc/{pid}")
        fields = (folder / "stat").read_text().rpartition(")")[2].split()
        cpu_s += (int(fields[11]) + int(fields[12])) * _TICK_S
        rss_kib += int(fields[21]) * (resource.getpagesize() // 1024)
        num_fds += len(list((folder / "fd").iterdir()))
    return Use(cpu_s, rss_kib, num_fds)


def allow_many_files() -> None:
    """A stream is a descriptor here and one in the server, which inherits the limit."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _FILES if hard == resource.RLIM_INFINITY else min(_FILES, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
