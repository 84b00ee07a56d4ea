"""Keeps an engine at full load with random arrivals, aborts, preemptions and mixed parameters.

python3 benchmarks/soak.py --shape qwen3-0.6b --minutes 10        # on a GPU
uv run benchmarks/soak.py --shape tiny --minutes 2 --concurrency 16 --max-len 1024 --kv-mib 2    # on a CPU

It fails (exit code 1) when a request ends with an error or with the wrong number of tokens, when blocks or
requests are left over, when the cache contradicts itself, when memory grows in the second half, or when it
lacked what it is for: preemptions, requests left early, load. It takes the start and some ten seconds longer
than `--minutes`. Greedy requests that come again and again are counted as twins: in bfloat16 near-ties make
some of them differ, since the sums depend on the batch.
"""

import argparse
import asyncio
import json
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shapes import SHAPES, write_shape

if TYPE_CHECKING:
    from llm_engine import AsyncLLM, SamplingParams
    from llm_engine.stats import EngineStats

_GROWTH_ALLOWED = 0.02
_LAST_S = 5.0
"""After the end, requests may go on for so long."""


@dataclass(slots=True)
class Soak:
    """What was seen so far."""

    endings: Counter[str] = field(default_factory=Counter)
    errors: list[str] = field(default_factory=list)
    tokens: int = 0
    samples: list[dict[str, float]] = field(default_factory=list)
    twins: dict[int, list[int]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Longest prompt and output in tokens; ids are below `vocab_size`."""

    max_prompt: int
    max_output: int
    vocab_size: int


def draw_params(rng: random.Random, load: Load) -> "SamplingParams":
    """Parameters of every kind, mixed."""
    from llm_engine import SamplingParams

    length = rng.randint(1, load.max_output)
    options: dict[str, Any] = {"max_tokens": length, "ignore_eos": True, "detokenize": False}
    kind = rng.randrange(8)
    if kind == 0:
        options["temperature"] = 0.0
    elif kind == 1:
        options.update(temperature=0.8, top_k=rng.choice([1, 20, 1000]))
    elif kind == 2:
        options.update(temperature=1.0, top_p=rng.choice([0.1, 0.9, 0.999]))
    elif kind == 3:
        options.update(temperature=0.7, min_p=0.05, logprobs=rng.choice([0, 5]))
    elif kind == 4:
        options.update(temperature=0.7, presence_penalty=0.5, frequency_penalty=0.2, repetition_penalty=1.1)
    elif kind == 5:
        options.update(temperature=1.0, seed=rng.randrange(1000), n=2)
    elif kind == 6:
        options.update(temperature=0.9, logit_bias={rng.randrange(load.vocab_size): 5.0}, min_tokens=1)
    else:
        options["temperature"] = 0.6
    return SamplingParams(**options)


async def one_request(
    engine: "AsyncLLM", rng: random.Random, load: Load, shared: list[int], soak: Soak
) -> None:
    """A request to its end, or left early, as clients do."""
    length = rng.randint(1, load.max_prompt)
    prompt = [rng.randrange(load.vocab_size) for _ in range(length)]
    if rng.random() < 0.3:
        prompt = (shared + prompt)[: load.max_prompt]
    params = draw_params(rng, load)
    leave_after = rng.randint(0, load.max_output) if rng.random() < 0.15 else None
    counts: Counter[int] = Counter()
    finished = 0
    stream = engine.generate(prompt, params)
    try:
        async for delta in stream:
            counts[delta.index] += len(delta.token_ids)
            soak.tokens += len(delta.token_ids)
            finished += delta.finish_reason is not None
            if leave_after is not None and sum(counts.values()) >= leave_after:
                soak.endings["left"] += 1
                return
    finally:
        await stream.aclose()
    soak.endings["finished"] += 1
    if finished != params.n or any(counts[index] != params.max_tokens for index in range(params.n)):
        soak.errors.append(
            f"{dict(counts)} tokens and {finished} endings of {params.n} x {params.max_tokens}"
        )


async def one_twin(engine: "AsyncLLM", rng: random.Random, load: Load, soak: Soak) -> None:
    """A greedy request that comes again: does it end as before?"""
    from llm_engine import SamplingParams

    seed = rng.randrange(8)
    own = random.Random(seed)
    prompt = [own.randrange(load.vocab_size) for _ in range(1 + load.max_prompt // 4)]
    params = SamplingParams(temperature=0.0, max_tokens=4, ignore_eos=True, detokenize=False)
    tokens: list[int] = []
    async for delta in engine.generate(prompt, params):
        tokens.extend(delta.token_ids)
    soak.endings["twin equal" if soak.twins.setdefault(seed, tokens) == tokens else "twin differs"] += 1


async def client(
    engine: "AsyncLLM", rng: random.Random, load: Load, shared: list[int], soak: Soak, end_s: float
) -> None:
    """One of the clients: requests one after the other, with pauses now and then; the last one is cut off."""
    while (left_s := end_s - time.monotonic()) > 0:
        try:
            async with asyncio.timeout(left_s + _LAST_S):
                if rng.random() < 0.05:
                    await one_twin(engine, rng, load, soak)
                else:
                    await one_request(engine, rng, load, shared, soak)
        except TimeoutError:
            soak.endings["cut off"] += 1
        except Exception as error:  # noqa: BLE001 - whatever it is, the soak has failed
            soak.errors.append(f"{type(error).__name__}: {error}")
            if len(soak.errors) > 20:
                return
        if rng.random() < 0.2:
            await asyncio.sleep(rng.expovariate(10))


def resident_mib(process: int | str) -> float:
    """Host memory of a process, a number or "self", in MiB."""
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmRSS"))


class DeviceMemory:
    """Samples the memory of the GPU: what a process holds or, where the driver does not tell, all in use."""

    def __init__(self, process: int) -> None:
        self._process = process
        self.misses, self._last = 0, 0.0
        self.scope = "none"
        if shutil.which("nvidia-smi") is not None:
            self.scope = "core"
            self.mib()
            if self.misses:
                self.scope, self.misses = "all processes", 0

    def mib(self) -> float:
        """In MiB; where the driver gives no answer, the sample before, and a miss is counted."""
        if self.scope == "none":
            return 0.0
        try:
            used = self._of_process() if self.scope == "core" else self._of_device()
        except (OSError, ValueError, subprocess.SubprocessError):
            used = None
        self.misses += used is None
        self._last = self._last if used is None else used
        return self._last

    def _of_process(self) -> float | None:
        for line in self._ask("--query-compute-apps=pid,used_gpu_memory"):
            process, _, used = (part.strip() for part in line.partition(","))
            if process == str(self._process) and used.isdigit():
                return float(used)
        return None

    def _of_device(self) -> float:
        return float(self._ask("--query-gpu=memory.used")[0])

    def _ask(self, query: str) -> list[str]:
        command = ["nvidia-smi", query, "--format=csv,noheader,nounits"]
        return subprocess.run(
            command, capture_output=True, text=True, check=True, timeout=20
        ).stdout.splitlines()


async def watch(engine: "AsyncLLM", memory: DeviceMemory, soak: Soak, end_s: float, every_s: float) -> None:
    """Samples memory and the core's gauges."""
    while time.monotonic() < end_s:
        await asyncio.sleep(every_s)
        stats = await engine.stats(check_cache=True)
        used = stats.kv_blocks_used + stats.kv_blocks_free + stats.kv_blocks_cached
        if used != stats.kv_blocks_total:
            soak.errors.append(f"{used} blocks accounted for, of {stats.kv_blocks_total}")
        soak.samples.append(
            {
                "core_mib": resident_mib(engine.core_pid),
                "front_mib": resident_mib("self"),
                "device_mib": await asyncio.to_thread(memory.mib),
                "running": stats.running,
                "preemptions": stats.preemptions,
            }
        )
        left_s = end_s - time.monotonic()
        print(
            f"{left_s:.0f} s to go, {len(soak.errors)} errors: {soak.samples[-1]}",
            file=sys.stderr,
            flush=True,
        )


def check_flat(soak: Soak) -> dict[str, float]:
    """Growth of each memory figure from the middle to the end, in MiB; too much of it is an error."""
    growth = {}
    half, quarter = len(soak.samples) // 2, max(1, len(soak.samples) // 4)
    for name in ("core_mib", "front_mib", "device_mib"):
        before = max(sample[name] for sample in soak.samples[half - quarter : half] or soak.samples[:1])
        after = max(sample[name] for sample in soak.samples[-quarter:])
        growth[name] = round(after - before, 1)
        if after - before > _GROWTH_ALLOWED * before + 16:
            soak.errors.append(f"{name} grew from {before:.0f} to {after:.0f}")
    return growth


async def settled(engine: "AsyncLLM", soak: Soak) -> "EngineStats":
    """The gauges once nothing runs; what is left after ten seconds is an error."""
    for _ in range(100):
        stats = await engine.stats(check_cache=True)
        if not (stats.running or stats.waiting or stats.kv_blocks_used):
            return stats
        await asyncio.sleep(0.1)
    soak.errors.append(
        f"left over: {stats.running} running, {stats.waiting} waiting, {stats.kv_blocks_used} blocks"
    )
    return stats


def check_load(soak: Soak, stats: "EngineStats", concurrency: int) -> None:
    """A soak without preemptions, without requests left early or with idle rows shows too little."""
    if not stats.preemptions:
        soak.errors.append("no preemption: make the cache smaller (--kv-mib)")
    if not soak.endings["left"]:
        soak.errors.append("no request was left early: soak longer")
    if max(sample["running"] for sample in soak.samples) < concurrency // 2:
        soak.errors.append(f"never more than half of {concurrency} rows ran")


async def run(arguments: argparse.Namespace) -> int:
    """The soak, from the start of the engine to the verdict."""
    from llm_engine import AsyncLLM, EngineOptions

    begin_s = time.monotonic()
    folder = write_shape(arguments.shape, Path(tempfile.mkdtemp()))
    options: dict[str, Any] = {
        "load_format": "dummy",
        "progress": False,
        "max_num_seqs": arguments.concurrency,
    }
    for option in arguments.option:
        name, _, value = option.partition("=")
        options[name] = json.loads(value)
    if arguments.kv_mib is not None:
        options["kv_cache_bytes"] = arguments.kv_mib << 20
    engine = await AsyncLLM.start(EngineOptions(model=str(folder), **options))
    longest = min(engine.max_model_len, arguments.max_len)
    load = Load(
        max_prompt=longest // 2,
        max_output=longest // 4,
        vocab_size=engine.vocab_size,
    )
    rng = random.Random(arguments.seed)
    shared = [rng.randrange(load.vocab_size) for _ in range(load.max_prompt // 2)]
    soak = Soak()
    memory = DeviceMemory(engine.core_pid)
    seconds = 60 * arguments.minutes
    end_s = time.monotonic() + seconds
    clients = [
        client(engine, random.Random(rng.random()), load, shared, soak, end_s)
        for _ in range(arguments.concurrency * 5 // 4)
    ]
    await asyncio.gather(watch(engine, memory, soak, end_s, max(0.5, seconds / 60)), *clients)
    stats = await settled(engine, soak)
    check_load(soak, stats, arguments.concurrency)
    if memory.misses > len(soak.samples) // 4:
        soak.errors.append(f"{memory.misses} of {len(soak.samples)} samples of the device's memory missed")
    if stats.failed_steps:
        soak.errors.append(f"{stats.failed_steps} steps failed")
    report = {
        "minutes": arguments.minutes,
        "shape": arguments.shape,
        "requests": dict(soak.endings),
        "output_tokens": soak.tokens,
        "preemptions": stats.preemptions,
        "graph_steps": stats.graph_steps,
        "eager_steps": stats.eager_steps,
        "seconds": round(time.monotonic() - begin_s, 1),
        "growth": check_flat(soak),
        "device_mib_is_of": memory.scope,
        "first": soak.samples[0],
        "last": soak.samples[-1],
        "errors": soak.errors[:20],
    }
    print(json.dumps(report, indent=1), flush=True)
    await engine.shutdown()
    return 1 if soak.errors else 0


def main() -> None:
    """Parses the command line and runs."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shape", choices=sorted(SHAPES), default="tiny")
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--concurrency", type=int, default=256)
    parser.add_argument("--max-len", type=int, default=4096, help="longest sequence in tokens")
    parser.add_argument("--kv-mib", type=int, help="size of the KV cache; small ones preempt more")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--option", action="append", default=[], metavar="NAME=VALUE", help="an engine option"
    )
    sys.exit(asyncio.run(run(parser.parse_args())))


if __name__ == "__main__":
    main()
