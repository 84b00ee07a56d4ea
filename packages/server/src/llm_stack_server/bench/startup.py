"""Times cold starts: a new process each, from its start to the first token; knows nothing of servers."""

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from llm_stack_server.errors import ServerError


def run_starts(
    options: Mapping[str, Any], *, rounds: int, empty_cache: bool, timeout_s: float
) -> list[dict[str, Any]]:
    """Starts an engine so many times, one process after the other.

    Args:
        options: Of the engine, by name.
        rounds: How many starts.
        empty_cache: Give each start an empty folder for compiled kernels.
        timeout_s: The most that one start may take.

    Returns:
        A row a start: `wall_s`, from before the process was started until its engine was ready, its first
        token behind it; `profiled_s`, what the process says itself, and its phases in order.

    Raises:
        ServerError: A process failed or took too long.
    """
    rows = []
    for _ in range(rounds):
        if empty_cache:
            with tempfile.TemporaryDirectory(prefix="llm-stack-kernels-") as folder:
                rows.append(_start({**options, "kernel_cache": folder}, timeout_s))
        else:
            rows.append(_start(options, timeout_s))
    return rows


def warm_kernels(options: Mapping[str, Any], *, timeout_s: float) -> dict[str, Any]:
    """Fills the folder of compiled kernels: a start, then batches of several sizes with all sampling options.

    Raises:
        ServerError: The process failed or took too long.
    """
    return _start(options, timeout_s, warm=True)


def _start(options: Mapping[str, Any], timeout_s: float, *, warm: bool = False) -> dict[str, Any]:
    command = [sys.executable, "-m", "llm_stack_server.bench.startup", *(["--warm"] if warm else [])]
    began_s = time.clock_gettime(time.CLOCK_MONOTONIC)
    try:
        # The options hold nothing that is not plain data.
        done = subprocess.run(  # noqa: S603 - our own module
            command,
            input=json.dumps(dict(options)),
            capture_output=True,
            text=True,
            check=False,
            timeout=timeout_s,
        )
    except subprocess.TimeoutExpired as error:
        raise ServerError(f"startup: it took more than {timeout_s:g} s") from error
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise ServerError(f"startup: the process ended with exit code {done.returncode}: {last}")
    row: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    row["wall_s"] = row.pop("ready_at_s") - began_s
    return row


def main(arguments: list[str]) -> int:
    """What runs in the new process: the options come on standard input, the row goes to standard output."""
    from llm_engine import LLM

    options = json.load(sys.stdin)
    llm = LLM(options.pop("model"), **{**options, "profile_start": True, "progress": False})
    ready_at_s = time.clock_gettime(time.CLOCK_MONOTONIC)
    profile = llm.start_profile
    row = {
        "ready_at_s": ready_at_s,
        "profiled_s": profile.wall_s,
        "phases": [asdict(phase) for phase in profile.phases],
        "table": profile.table(),
    }
    if "--warm" in arguments:
        row["warmed_s"] = _warm(llm)
    llm.shutdown()
    sys.stdout.write(json.dumps(row) + "\n")
    return 0


def _warm(llm: Any) -> float:  # noqa: ANN401 - imported only here
    """Seconds of running what loads the kernels of usual steps: few and many rows, short and long prompts."""
    from llm_engine import SamplingParams

    every: tuple[dict[str, Any], ...] = (
        {"temperature": 0.0},
        {"temperature": 0.8},
        {"temperature": 0.8, "top_k": 20, "top_p": 0.9, "min_p": 0.05},
        {"temperature": 0.8, "repetition_penalty": 1.1, "presence_penalty": 0.1, "logprobs": 5},
    )
    began_s = time.perf_counter()
    room = llm.max_model_len - 8
    for count, length in ((1, 1), (1, 300), (4, 70), (16, 40), (64, 20)):
        for more in every:
            prompts = [
                [(7 * row + at) % llm.vocab_size for at in range(min(length, room))] for row in range(count)
            ]
            params = SamplingParams(max_tokens=4, ignore_eos=True, detokenize=False, **more)
            llm.generate(prompts, params, progress=False)
    return time.perf_counter() - began_s


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
