"""Thousands of streams of which many leave: nothing may be lost, left over, or grow.

    .venv/bin/python benchmarks/load_test.py streams --streams 1000 --seconds 120 --leave 0.2
    .venv/bin/python benchmarks/load_test.py queue --requests 10000

A real `llm-stack serve` with the null worker, whose text is known: each answer is checked to the letter, with
its finish reason and usage. Afterwards all gauges must be 0 again, the counters must agree with what the
client saw, descriptors and blocks must be given back, and the resident memory of front end and core must
have stayed flat. Prints what was found as JSON; exit code 1 where anything was wrong.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from llm_engine.core.startup import find_tokenizer
from llm_engine.options import EngineOptions
from llm_models import resolve
from llm_tokenizer import Tokenizer
from null_worker import answer_text
from served import Served, Use, allow_many_files
from stream_client import Stream, request_bytes, run_stream

_PATH = "/v1/completions"
_PROMPT = "So many read along, and so many leave before the end:"
_FLAT_SHARE, _FLAT_KIB = 0.02, 4096
_SETTLE_S = 20.0
_GAUGES = (
    "llm_stack_requests_running",
    "llm_stack_requests_waiting",
    "llm_stack_queue_running",
    "llm_stack_queue_waiting",
    "llm_stack_queue_waiting_tokens",
    'llm_stack_kv_blocks{state="used"}',
)


@dataclass(slots=True)
class Seen:
    """What came of the requests so far."""

    counts: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)
    samples: list[tuple[Use, Use]] = field(default_factory=list)

    def check(self, stream: Stream, num_tokens: int) -> None:
        """Take in one answer: whole and right to the letter, or its client has left."""
        if stream.left:
            self.counts["left"] += 1
            return
        fault = _fault(stream, num_tokens)
        if fault is None:
            self.counts["whole"] += 1
            self.counts["tokens"] += num_tokens
        else:
            self.counts["wrong"] += 1
            self.faults.append(fault)


def _fault(stream: Stream, num_tokens: int) -> str | None:
    if stream.status != 200 or not stream.is_whole:
        return f"status {stream.status}, whole: {stream.is_whole}, {bytes(stream.raw[-200:])!r}"
    events = stream.events()
    choices = [event["choices"][0] for event in events if event["choices"]]
    text = "".join(choice["text"] for choice in choices)
    if text != _expected(num_tokens):
        return f"wrong text of {num_tokens} tokens: {text[-80:]!r}"
    ending = (choices[-1]["finish_reason"], events[-1]["usage"]["completion_tokens"])
    return None if ending == ("length", num_tokens) else f"ended by {ending}, not length, {num_tokens}"


@cache
def _expected(num_tokens: int) -> str:
    return answer_text(_tokenizer(), num_tokens)


@cache
def _tokenizer() -> Tokenizer:
    options = EngineOptions(model="smollm2")
    tokenizer, _ = find_tokenizer(options, resolve(options.model))
    assert tokenizer is not None
    return tokenizer


def _request(num_tokens: int) -> bytes:
    body: dict[str, Any] = {"model": "smollm2", "prompt": _PROMPT, "max_tokens": num_tokens}
    return request_bytes(_PATH, {**body, "stream": True, "stream_options": {"include_usage": True}})


async def _one(port: int, seen: Seen, rng: random.Random, longest: int, leave: float) -> None:
    """One request; with the probability `leave` its client goes: soon, before its first token, or midway."""
    num_tokens = rng.randint(longest // 2, longest)
    leaves: Callable[[Stream], bool] | None = None
    after_s: float | None = None
    if rng.random() < leave:
        match rng.randrange(3):
            case 0:
                after_s = rng.uniform(0.0, 0.05)
            case 1:
                after_s = rng.uniform(0.0, 2.0)
            case _:
                num_events = rng.randint(1, num_tokens // 2)
                leaves = lambda stream: len(stream.arrivals_s) >= num_events  # noqa: E731
    stream = await run_stream(port, _request(num_tokens), leaves=leaves, leave_after_s=after_s)
    seen.check(stream, num_tokens)


async def _streams(served: Served, seen: Seen, options: argparse.Namespace) -> None:
    end_s = time.monotonic() + options.seconds

    async def client(number: int) -> None:
        rng = random.Random(number)
        while time.monotonic() < end_s:
            await _one(served.port, seen, rng, options.tokens, options.leave)

    async def sample() -> None:
        while True:
            seen.samples.append((served.front(), served.core()))
            await asyncio.sleep(min(1.0, options.seconds / 20))

    sampler = asyncio.create_task(sample())
    await asyncio.gather(*(client(number) for number in range(options.streams)))
    sampler.cancel()


async def _queue(served: Served, seen: Seen, options: argparse.Namespace) -> None:
    """All requests at once, and the same again: later waves must need no memory that earlier ones did not."""
    for _ in range(options.waves):
        waiting = [_one(served.port, seen, random.Random(i), 16, 0.0) for i in range(options.requests)]
        await asyncio.gather(*waiting)
        await asyncio.sleep(2)
        seen.samples.append((served.front(), served.core()))


def _left_over(served: Served, before: Use) -> list[str]:
    """What has not gone back in time."""
    end_s = time.monotonic() + _SETTLE_S
    while True:
        metrics = served.metrics()
        left = [f"{name} is {metrics[name]}" for name in _GAUGES if metrics[name]]
        num_fds = served.front().num_fds
        if num_fds > before.num_fds + 2:
            left.append(f"{num_fds} descriptors, {before.num_fds} before")
        if not left or time.monotonic() > end_s:
            return left
        time.sleep(0.5)


def _disagreements(metrics: dict[str, float], seen: Seen) -> list[str]:
    """Where the counters contradict the client, or each other."""
    ended = {
        outcome: sum(
            value
            for name, value in metrics.items()
            if name.startswith("llm_stack_requests_total{") and f'outcome="{outcome}"' in name
        )
        for outcome in ("length", "stop", "abort", "error")
    }
    whole, left = seen.counts["whole"], seen.counts["left"]
    found = []
    if ended["error"] or ended["stop"]:
        found.append(f"the server counts {ended}")
    # Who hangs up while the last bytes are on their way has left for the client, not for the server.
    if not whole <= ended["length"] <= whole + left or ended["length"] + ended["abort"] > whole + left:
        found.append(f"the server counts {ended}, the client {dict(seen.counts)}")
    core = sum(v for n, v in metrics.items() if n.startswith("llm_stack_engine_requests_finished_total"))
    added = metrics["llm_stack_engine_requests_added_total"]
    if core != added:
        found.append(f"the core took in {added} requests and ended {core}")
    return found


def _growth(samples: list[tuple[Use, Use]], *, is_waves: bool) -> tuple[dict[str, int], list[str]]:
    """Growth in KiB from the first half to the second, or from the second wave on; and what is too much."""
    growths, faults = {}, []
    for place, name in enumerate(("front", "core")):
        sizes = [sample[place].rss_kib for sample in samples]
        quarter = len(sizes) // 4
        parts = (
            (sizes[1:2] or sizes, sizes[-1:])
            if is_waves
            else (sizes[quarter : 2 * quarter], sizes[-quarter:])
        )
        first, last = (statistics.median(part) for part in parts)
        growths[name] = round(last - first)
        if last > first * (1 + _FLAT_SHARE) + _FLAT_KIB:
            faults.append(f"{name} grew from {first} to {last} KiB")
    return growths, faults


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Start a server, put the load on it, and report."""
    allow_many_files()
    folder = Path(tempfile.mkdtemp(prefix="load-test-"))
    # The server's queue lets all through to the core's, which then must hold them.
    flags = ["--max-waiting-requests", str(max(options.requests, options.streams))]
    flags += ["--worker", f"null_worker:{options.worker}", "--max-num-seqs", str(options.max_num_seqs)]
    served = Served(
        [
            *(sys.executable, "-m", "llm_stack_server", "serve", "smollm2", "--port", "{port}"),
            *("--threads", "1", "--no-progress", "--max-queued-requests", "0", *flags, *options.flag),
        ],
        folder / "log",
        {"PYTHONPATH": str(Path(__file__).parent)},
    )
    seen = Seen()
    try:
        served.wait_ready()
        asyncio.run(_streams(served, Seen(), argparse.Namespace(**{**vars(options), **_WARM_UP})))
        served_before, counted_before = served.front(), served.metrics()
        begun_s = time.monotonic()
        asyncio.run((_queue if options.load == "queue" else _streams)(served, seen, options))
        wall_s = time.monotonic() - begun_s
        left = _left_over(served, served_before)
        time.sleep(5.5)  # the core's counters are read each 5 s
        metrics = served.metrics()
        since = {name: value - counted_before.get(name, 0.0) for name, value in metrics.items()}
        growths, grown = _growth(seen.samples, is_waves=options.load == "queue")
        faults = [*seen.faults[:5], *left, *_disagreements(since, seen), *(grown if options.flat else [])]
    finally:
        served.stop()
    return {
        **{name: seen.counts[name] for name in ("whole", "left", "wrong", "tokens")},
        "wall_s": round(wall_s, 1),
        "most_fds": max(front.num_fds for front, _ in seen.samples),
        "front_rss_mib": seen.samples[-1][0].rss_kib // 1024,
        "core_rss_mib": seen.samples[-1][1].rss_kib // 1024,
        "growth_kib": growths,
        "faults": faults,
    }


_WARM_UP = {"streams": 8, "seconds": 0.5, "tokens": 8, "leave": 0.0}


def main() -> int:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("load", choices=("streams", "queue"))
    parser.add_argument("--streams", type=int, default=1000, help="at a time")
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--leave", type=float, default=0.2, help="share of the clients that hang up")
    parser.add_argument("--tokens", type=int, default=60, help="of the longest answers")
    parser.add_argument("--requests", type=int, default=10_000, help="queue: at once")
    parser.add_argument("--waves", type=int, default=3, help="queue: how often")
    parser.add_argument("--worker", default="every_200_ms")
    parser.add_argument("--max-num-seqs", type=int, default=800, help="the others wait")
    parser.add_argument("--flag", action="append", default=[], help="another flag of llm-stack serve")
    parser.add_argument("--no-flat", dest="flat", action="store_false", help="do not judge the memory")
    found = run(parser.parse_args())
    sys.stdout.write(json.dumps(found) + "\n")
    return 1 if found["faults"] else 0


if __name__ == "__main__":
    sys.exit(main())
