"""What the shell around a model costs: CPU time of front end and core for 1,000 streamed tokens.

    .venv/bin/python benchmarks/shell_cost.py --streams 1 32 256 --worker every_50_ms
    .venv/bin/python benchmarks/shell_cost.py --streams 256 --rounds 3 --api chat \
        --peer "/tmp/vllm-venv/bin/python -m vllm.entrypoints.openai.api_server ... --port {port}"

The server is `llm-stack serve` with the null worker of null_worker.py; the client is this process. A peer is
a command line of a server with OpenAI's routes (its health at /health) which runs side by side and is asked
in turns. Prints a line of JSON for each measurement. CPU time of a process hardly depends on what else runs
on the machine; times to first token and rates do.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shlex
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from served import Served, Use, allow_many_files
from stream_client import Stream, request_bytes, run_stream

_PROMPT = "Tell me how an engine turns the tokens of a model into the text that people read."
_PATHS = {"chat": "/v1/chat/completions", "completions": "/v1/completions"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What is asked: so many streams at a time, so many requests in all, of so many tokens."""

    api: str
    streams: int
    requests: int
    tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One measurement. Times in seconds; CPU seconds are for 1,000 streamed tokens."""

    server: str
    worker: str
    api: str
    streams: int
    requests: int
    tokens: int
    events_per_token: float
    wall_s: float
    requests_per_s: float
    tokens_per_s: float
    ttft_p50_s: float
    ttft_p99_s: float
    gap_p50_s: float
    gap_p99_s: float
    front_cpu_s: float
    core_cpu_s: float
    client_cpu_s: float
    front_rss_mib: int


def measure(name: str, worker: str, model: str, served: Served, load: Load) -> Measured:
    """Put a load on a server that is idle."""
    request = request_bytes(_PATHS[load.api], _body(model, load))
    front, core, client_s = served.front(), served.core(), time.process_time()
    begun_s = time.perf_counter()
    streams = asyncio.run(_run(served.port, request, load))
    wall_s = time.perf_counter() - begun_s
    client_s = time.process_time() - client_s
    after_front, after_core = served.front(), served.core()
    tokens, events = _check(streams, load)
    gaps = [
        later - earlier
        for stream in streams
        for earlier, later in zip(stream.arrivals_s, stream.arrivals_s[1:], strict=False)
    ]
    first = [stream.arrivals_s[0] - stream.sent_s for stream in streams]
    thousands = tokens / 1000
    return Measured(
        server=name,
        worker=worker,
        api=load.api,
        streams=load.streams,
        requests=load.requests,
        tokens=tokens,
        events_per_token=round(events / tokens, 3),
        wall_s=round(wall_s, 3),
        requests_per_s=round(load.requests / wall_s, 1),
        tokens_per_s=round(tokens / wall_s),
        ttft_p50_s=_quantile(first, 0.5),
        ttft_p99_s=_quantile(first, 0.99),
        gap_p50_s=_quantile(gaps, 0.5),
        gap_p99_s=_quantile(gaps, 0.99),
        front_cpu_s=_cpu(front, after_front, thousands),
        core_cpu_s=_cpu(core, after_core, thousands),
        client_cpu_s=round(client_s / thousands, 4),
        front_rss_mib=after_front.rss_kib // 1024,
    )


def _body(model: str, load: Load) -> dict[str, Any]:
    asked: dict[str, Any] = {"prompt": _PROMPT, "max_tokens": load.tokens}
    if load.api == "chat":
        messages = [{"role": "user", "content": _PROMPT}]
        asked = {"messages": messages, "max_completion_tokens": load.tokens}
    shared = {"temperature": 0, "stream": True, "stream_options": {"include_usage": True}}
    return {"model": model, "ignore_eos": True, **asked, **shared}


async def _run(port: int, request: bytes, load: Load) -> list[Stream]:
    """Each of the streams is followed by another one until all requests are done."""
    left = load.requests
    streams: list[Stream] = []

    async def one_after_the_other() -> None:
        nonlocal left
        while left > 0:
            left -= 1
            streams.append(await run_stream(port, request))

    await asyncio.gather(*(one_after_the_other() for _ in range(load.streams)))
    return streams


def _check(streams: Sequence[Stream], load: Load) -> tuple[int, int]:
    """Tokens and events of all; exits where an answer is not whole."""
    tokens = events = 0
    for stream in streams:
        if not stream.is_whole or stream.status != 200:
            sys.exit(f"an answer is not whole, status {stream.status}: {bytes(stream.raw[-300:])!r}")
        found = stream.events()
        usage = found[-1]["usage"]
        if usage["completion_tokens"] != load.tokens:
            sys.exit(f"asked for {load.tokens} tokens, got {usage}")
        tokens += usage["completion_tokens"]
        events += sum(1 for event in found if event["choices"])
    return tokens, events


def _cpu(before: Use, after: Use, thousands: float) -> float:
    return round((after.cpu_s - before.cpu_s) / thousands, 4)


def _quantile(values: Sequence[float], share: float) -> float:
    if len(values) < 2:
        return round(values[0], 4) if values else 0.0
    return round(statistics.quantiles(values, n=100, method="inclusive")[round(share * 100) - 1], 4)


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 32, 256])
    parser.add_argument("--worker", default="every_50_ms", help="at_once, every_50_ms or every_200_ms")
    parser.add_argument("--api", choices=sorted(_PATHS), default="chat")
    parser.add_argument("--tokens", type=int, default=128, help="of each answer")
    parser.add_argument("--waves", type=int, default=2, help="requests in all, as a multiple of the streams")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--flag", action="append", default=[], help="another flag of llm-stack serve")
    parser.add_argument("--peer", help="command line of another server, {port} in it")
    parser.add_argument("--peer-model", default="smollm2", help="its model's name")
    options = parser.parse_args()
    allow_many_files()
    folder = Path(tempfile.mkdtemp(prefix="shell-cost-"))
    ours = Served(
        [
            *(sys.executable, "-m", "llm_stack_server", "serve", "smollm2", "--port", "{port}"),
            *("--worker", f"null_worker:{options.worker}", "--threads", "1", "--no-progress"),
            *("--max-num-seqs", str(max(options.streams)), *options.flag),
        ],
        folder / "ours.log",
        {"PYTHONPATH": str(Path(__file__).parent)},
    )
    servers = {"llm-stack": (ours, "smollm2", options.worker)}
    try:
        if options.peer:
            peer = Served(shlex.split(options.peer), folder / "peer.log", ready_path="/health")
            servers["peer"] = (peer, options.peer_model, "its own")
        for served, _, _ in servers.values():
            served.wait_ready()
        for streams in options.streams:
            requests = max(streams * options.waves, 2)
            load = Load(api=options.api, streams=streams, requests=requests, tokens=options.tokens)
            for _ in range(options.rounds):
                for name, (served, model, worker) in servers.items():
                    measured = measure(name, worker, model, served, load)
                    sys.stdout.write(json.dumps(asdict(measured)) + "\n")
                    sys.stdout.flush()
    finally:
        for served, _, _ in servers.values():
            served.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
