"""Owns running many cases in a worker process with a time limit each, and the file of their results."""

import json
import os
import queue
import selectors
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

ROOT = Path(__file__).parents[2]
RESULTS = Path(__file__).with_name("results.jsonl")


def read_results(path: Path = RESULTS) -> dict[str, dict[str, Any]]:
    """All results so far, by case."""
    if not path.exists():
        return {}
    lines = (json.loads(line) for line in path.read_text().splitlines() if line.strip())
    return {line["case"]: line for line in lines}


def write_results(results: dict[str, dict[str, Any]], path: Path = RESULTS) -> None:
    """Replaces the file by these, in alphabetical order."""
    lines = [json.dumps(results[case], sort_keys=True) for case in sorted(results, key=str.lower)]
    partial = path.with_suffix(".partial")
    partial.write_text("".join(line + "\n" for line in lines))
    partial.replace(path)


def sweep(cases: Sequence[str], *, limit_s: float, workers: int = 1, path: Path = RESULTS) -> bool:
    """Checks the cases and enters each result at once; returns whether all passed."""
    waiting, lock, outcomes = queue.SimpleQueue[str](), threading.Lock(), []
    for case in cases:
        waiting.put(case)

    def work() -> None:
        with Worker() as worker:
            while not waiting.empty():
                try:
                    case = waiting.get_nowait()
                except queue.Empty:
                    return
                result = worker.check(case, limit_s)
                with lock:
                    write_results(read_results(path) | {case: result}, path)
                    outcomes.append(bool(result["passed"]))
                    _report(result)

    threads = [threading.Thread(target=work) for _ in range(workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return all(outcomes)


def _report(result: Mapping[str, Any]) -> None:
    head = f"{'ok  ' if result['passed'] else 'FAIL'} {result['case']}: {result['standing']}"
    print(f"{head} {result['seconds']} s {result['reason'][:120]}", flush=True)


class Worker:
    """A process that checks one case after the other; a case that takes too long ends it."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()

    def check(self, case: str, limit_s: float) -> dict[str, Any]:
        """The result of a case, as `Result.as_dict` gives it."""
        if self._process is None:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "scripts.model_parity", "worker"],
                cwd=ROOT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
            )
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        stdin.write(f"{case}\n".encode())
        stdin.flush()
        with selectors.DefaultSelector() as selector:
            selector.register(stdout, selectors.EVENT_READ)
            ready = selector.select(limit_s)
        line = stdout.readline() if ready else b""
        if line:
            return json.loads(line)
        reason = f"took more than {limit_s:g} s" if not ready else "the process died"
        self._stop()
        return {"case": case, "standing": "error", "checks": {}, "caches": [], "reason": reason,
                "seconds": limit_s, "passed": False}  # fmt: skip

    def _stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None
