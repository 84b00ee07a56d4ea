"""The operating-system side of a group of rank processes: start, watch, end; knows nothing of messages."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

_WATCH_INTERVAL_S = 0.05
_TERMINATE_GRACE_S = 2.0


@dataclass(frozen=True, slots=True)
class Death:
    """The first rank that ended without being told to, and how."""

    rank: int
    reason: str


class RankGroup:
    """Processes that live and die together.

    A thread watches them: when one ends before `end` was called, the others are ended and `death` says which
    it was.
    """

    def __init__(self) -> None:
        self._processes: list[subprocess.Popen[bytes]] = []
        self._death: Death | None = None
        self._ending = False
        self._lock = threading.Lock()
        self._watcher: threading.Thread | None = None

    @property
    def death(self) -> Death | None:
        """The first death; None while all is well."""
        return self._death

    @property
    def pids(self) -> list[int]:
        """Process ids by rank."""
        return [process.pid for process in self._processes]

    def start(self, commands: Sequence[Sequence[str]]) -> None:
        """Starts one process per rank, with our module search path and a pipe that shows we live."""
        paths = os.pathsep.join(path or os.getcwd() for path in sys.path)  # noqa: PTH109  (sys.path holds strings)
        environment = {**os.environ, "PYTHONPATH": paths}
        # Ranks are on this host: without it gloo looks for an address by the host's name, which may not
        # resolve.
        if sys.platform == "linux":
            environment.setdefault("GLOO_SOCKET_IFNAME", "lo")
        try:
            for command in commands:
                self._processes.append(_spawn(command, environment))
        except OSError:
            self._kill_all()
            raise
        self._watcher = threading.Thread(target=self._watch, name="rank-watcher", daemon=True)
        self._watcher.start()

    def declare_dead(self, rank: int, reason: str) -> Death:
        """Ends all processes because a rank is of no use any more; an earlier death stays the reason."""
        with self._lock:
            death = self._death = self._death or Death(rank, reason)
        self._kill_all()
        return death

    def end(self, *, grace_s: float) -> None:
        """Waits for the processes to end by themselves, then ends them. May be called twice."""
        with self._lock:
            self._ending = True
        deadline = time.monotonic() + grace_s
        for process in self._processes:
            if not _wait(process, deadline - time.monotonic()):
                break
        self._kill_all()
        if self._watcher is not None:
            self._watcher.join()

    def _watch(self) -> None:
        while True:
            for rank, process in enumerate(self._processes):
                if process.poll() is None:
                    continue
                with self._lock:
                    if self._ending:
                        return
                    if self._death is None:
                        self._death = Death(rank, _how(process.returncode))
                self._kill_all()
                return
            with self._lock:
                if self._ending or self._death is not None:
                    return
            time.sleep(_WATCH_INTERVAL_S)

    def _kill_all(self) -> None:
        for process in self._processes:
            if process.poll() is None:
                process.terminate()
        deadline = time.monotonic() + _TERMINATE_GRACE_S
        for process in self._processes:
            if not _wait(process, deadline - time.monotonic()):
                process.kill()
                process.wait()
            if process.stdin is not None:
                process.stdin.close()


def _spawn(command: Sequence[str], environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    # A session of its own: Ctrl-C reaches the executor's process, which then ends the ranks in order.
    return subprocess.Popen(  # noqa: S603  (our own interpreter and module)
        [sys.executable, *command], stdin=subprocess.PIPE, env=environment, start_new_session=True
    )


def _wait(process: subprocess.Popen[bytes], timeout_s: float) -> bool:
    try:
        process.wait(max(timeout_s, 0))
    except subprocess.TimeoutExpired:
        return False
    return True


def _how(returncode: int) -> str:
    if returncode >= 0:
        return f"its process exited with status {returncode}"
    try:
        name = signal.Signals(-returncode).name
    except ValueError:
        name = f"signal {-returncode}"
    return f"its process was killed by {name}"
