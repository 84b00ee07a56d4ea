"""Fuzzes a server that it starts.

    nice -n 10 uv run python -m scripts.server_fuzz smollm2 --requests 20000 --seed 1 --failures failures
    uv run python -m scripts.server_fuzz smollm2 --replay failures/case-1-42.json

Exit code 1 where anything failed. A case is made of seed and number, so that it can be sent again.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

from scripts.server_fuzz.cases import Case
from scripts.server_fuzz.run import Plan, Target, fuzz
from scripts.server_fuzz.watch import ask, memory_bytes, with_children

_HOST = "127.0.0.1"
_START_S = 300.0


def main() -> int:
    """Fuzz; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("model", help="what `llm-stack serve` takes")
    parser.add_argument("--vectors", action="store_true", help="the model embeds, it generates no text")
    parser.add_argument("--requests", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--workers", type=int, default=16)
    parser.add_argument("--failures", type=Path, help="folder for the cases that fail")
    parser.add_argument("--replay", type=Path, nargs="+", help="send these cases alone, or those of a folder")
    parser.add_argument("--log", type=Path, default=Path("server_fuzz.log"), help="what the server logs")
    options = parser.parse_args()
    plan = Plan(seed=options.seed, count=options.requests, workers=options.workers, failures=options.failures)
    cases = None if options.replay is None else [Case.read(path) for path in _files(options.replay)]
    print(f"seed {plan.seed}, log in {options.log}")
    with options.log.open("wb") as log:
        port = _free_port()
        server = subprocess.Popen(_command(options.model, port), stdout=log, stderr=subprocess.STDOUT)
        try:
            _wait_ready(server, port, options.log)
            target = Target(
                host=_HOST,
                port=port,
                model="fuzzed",
                gives_vectors=options.vectors,
                log=lambda: options.log.read_text(errors="replace"),
                memory=lambda: memory_bytes(with_children(server.pid)),
            )
            report = asyncio.run(fuzz(target, plan, cases))
        finally:
            server.send_signal(signal.SIGTERM)
            code = server.wait(60)
    if code:
        report.fail(f"the server exited with {code}", -1)
    print("\n".join(report.lines()))
    return 1 if report.failures else 0


def _files(given: list[Path]) -> list[Path]:
    return [file for path in given for file in (sorted(path.glob("*.json")) if path.is_dir() else [path])]


def _command(model: str, port: int) -> list[str]:
    # Short texts and a time limit, so that no case holds the others up for long.
    limits = ["--max-model-len", "256", "--max-num-seqs", "32", "--max-request-s", "20", "--threads", "1"]
    options = [
        "--served-model-name",
        "fuzzed",
        "--port",
        str(port),
        "--no-progress",
        "--mcp",
        "--output-format",
        "hermes",
    ]
    return [sys.executable, "-m", "llm_stack_server", "serve", model, *options, *limits, "--dtype", "float32"]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((_HOST, 0))
        return int(probe.getsockname()[1])


def _wait_ready(server: subprocess.Popen[bytes], port: int, log: Path) -> None:
    ends_s = time.monotonic() + _START_S
    while time.monotonic() < ends_s:
        if server.poll() is not None:
            raise SystemExit(f"the server ended:\n{log.read_text(errors='replace')}")
        try:
            if ask(_HOST, port, "GET", "/health/ready")[0] == 200:
                return
        except OSError:
            pass
        time.sleep(0.2)
    raise SystemExit(f"the server was not ready in {_START_S:g} s")


if __name__ == "__main__":
    sys.exit(main())
