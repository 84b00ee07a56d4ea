"""The load test of the benchmarks in a short form: a real server without a model, whose text is known."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

LOAD_TEST = Path(__file__).parents[2] / "benchmarks" / "load_test.py"


def load_test(*arguments: str) -> dict[str, Any]:
    command = [sys.executable, str(LOAD_TEST), *arguments, "--no-flat"]  # too short to judge the memory by
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.stdout, result.stderr[-3000:]
    found: dict[str, Any] = json.loads(result.stdout)
    assert found["faults"] == []
    assert (result.returncode, found["wrong"]) == (0, 0)
    return found


def test_streams_of_which_many_leave() -> None:
    """200 at a time, 120 of them running, a third hangs up: in the queue, before the first token, midway."""
    found = load_test(
        *("streams", "--streams", "200", "--seconds", "3", "--leave", "0.33"),
        *("--max-num-seqs", "120", "--tokens", "40", "--worker", "every_50_ms"),
    )
    assert found["whole"] > 100
    assert found["left"] > 30


def test_a_thousand_requests_at_once() -> None:
    """All are accepted, served and forgotten."""
    found = load_test(
        *("queue", "--requests", "1000", "--waves", "1", "--max-num-seqs", "64", "--worker", "at_once")
    )
    assert found["whole"] == 1000
