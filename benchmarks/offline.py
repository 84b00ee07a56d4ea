"""Runs W1 to W6 through `llm_engine.LLM` with dummy weights and prints one JSON line a workload.

uv run benchmarks/offline.py --shape qwen3-0.6b --out result.json      # on a GPU
uv run benchmarks/offline.py --shape tiny --scale 0.05                 # on a CPU, in seconds
"""

import argparse
import json
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from llm_engine import LLM
    from llm_engine.stats import EngineStats

STARTED = time.perf_counter()  # before the heavy imports: the start-up time counts them

from shapes import SHAPES, write_shape  # noqa: E402
from workloads import Workload, make_workloads  # noqa: E402


def machine() -> dict[str, Any]:
    """What a reader must know to judge the figures."""
    import torch

    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    )
    device = (
        torch.cuda.get_device_name()
        if torch.cuda.is_available()
        else platform.processor() or platform.machine()
    )
    return {
        "commit": commit.stdout.strip(),
        "date": time.strftime("%Y-%m-%d"),
        "device": device,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "command": " ".join(sys.argv),
    }


def run_round(llm: "LLM", workload: Workload, index: int) -> float:
    """Seconds of one repetition, after checking that every request got all its tokens."""
    from llm_engine import SamplingParams

    params = [
        SamplingParams(temperature=0.6, ignore_eos=True, max_tokens=length, detokenize=False)
        for length in workload.output_lengths
    ]
    started = time.perf_counter()
    outputs = llm.generate(workload.prompts_of_round(index), params, progress=False)
    seconds = time.perf_counter() - started
    for output, length in zip(outputs, workload.output_lengths, strict=True):
        got = len(output.outputs[0].token_ids)
        if got != length:
            raise RuntimeError(f"{workload.name}: a request has {got} tokens in place of {length}")
    return seconds


def measure(llm: "LLM", workload: Workload) -> dict[str, Any]:
    """The best of the workload's rounds, as a row of the result."""
    before = llm.stats()
    seconds = [run_round(llm, workload, index) for index in range(workload.rounds)]
    best = min(seconds)
    return {
        "workload": workload.name,
        "title": workload.title,
        "seconds": [round(value, 4) for value in seconds],
        "input_tokens": workload.num_input_tokens,
        "output_tokens": workload.num_output_tokens,
        "output_tokens_per_s": round(workload.num_output_tokens / best, 1),
        "input_tokens_per_s": round(workload.num_input_tokens / best, 1),
        "steps": per_step(before, llm.stats()),
    }


def per_step(before: "EngineStats", after: "EngineStats") -> dict[str, Any]:
    """Steps of all rounds, and the mean host time of one by phase, in milliseconds."""
    steps = after.steps - before.steps
    counts = {
        name: getattr(after, name) - getattr(before, name)
        for name in ("steps", "graph_steps", "eager_steps", "late_steps")
    }
    phases = {
        name: round(1000 * (getattr(after, name) - getattr(before, name)) / max(steps, 1), 4)
        for name in ("plan_s", "launch_s", "result_s", "host_s", "wait_s", "between_s")
    }
    return {**counts, **{f"{name.removesuffix('_s')}_ms": value for name, value in phases.items()}}


def main() -> None:
    """Parses the command line, loads the shape once, runs the workloads."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shape", choices=sorted(SHAPES), default="tiny")
    parser.add_argument("--workloads", default="W1,W2,W3,W4,W5")
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--out", type=Path)
    parser.add_argument(
        "--option", action="append", default=[], metavar="NAME=VALUE", help="an engine option"
    )
    arguments = parser.parse_args()
    options = {}
    for option in arguments.option:
        name, _, value = option.partition("=")
        options[name] = json.loads(value)

    from llm_engine import LLM, SamplingParams

    imported = time.perf_counter()
    folder = write_shape(arguments.shape, Path(tempfile.mkdtemp()))
    llm = LLM(str(folder), load_format="dummy", **{"max_num_seqs": 256, "progress": False, **options})
    loaded = time.perf_counter()
    llm.generate(
        [[5] * 64] * 8,
        SamplingParams(max_tokens=8, ignore_eos=True, temperature=0.6, detokenize=False),
        progress=False,
    )
    warmed = time.perf_counter()
    start = {
        "import_s": round(imported - STARTED, 2),
        "load_s": round(loaded - imported, 2),
        "first_batch_s": round(warmed - loaded, 2),
    }
    report = {"shape": arguments.shape, "scale": arguments.scale, **machine(), **start, "results": []}
    print(json.dumps(report), flush=True)
    every = make_workloads(scale=arguments.scale)
    for name in arguments.workloads.split(","):
        row = measure(llm, every[name])
        report["results"].append(row)
        print(json.dumps({"shape": arguments.shape, **row}), flush=True)
    if arguments.out:
        arguments.out.write_text(json.dumps(report, indent=1) + "\n")
    llm.shutdown()


if __name__ == "__main__":
    main()
