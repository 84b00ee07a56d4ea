"""Splits the step loop's time into host and device, by `EngineStats`; prints a row a round.

python3 benchmarks/step_loop.py --shape qwen3-0.6b --rows 1 --tokens 512
python3 benchmarks/step_loop.py --shape qwen3-0.6b --workload W1 --rounds 2
"""

import argparse
import json
import logging
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from llm_engine import LLM, SamplingParams

import torch
from shapes import SHAPES, write_shape
from workloads import make_workloads

PHASES = ("plan", "launch", "result", "wait", "between")


def run_round(
    llm: "LLM", name: str, prompts: list[list[int]], params: "SamplingParams | list[SamplingParams]"
) -> dict[str, Any]:
    """Times one batch and says where its steps' time went, in milliseconds a step."""
    before = asdict(llm.stats())
    started = time.perf_counter()
    outputs = llm.generate(prompts, params, progress=False)
    seconds = time.perf_counter() - started
    after = asdict(llm.stats())
    steps = after["steps"] - before["steps"]
    row: dict[str, Any] = {"round": name, "seconds": round(seconds, 3), "steps": steps}
    row["output_tokens_per_s"] = round(sum(len(one.outputs[0].token_ids) for one in outputs) / seconds, 1)
    for phase in PHASES:
        row[f"{phase}_ms"] = round(1000 * (after[f"{phase}_s"] - before[f"{phase}_s"]) / steps, 4)
    for count in ("graph_steps", "eager_steps", "late_steps"):
        row[count] = after[count] - before[count]
    if torch.cuda.is_available():
        memory = torch.cuda.memory_stats()
        row["allocator_retries"] = memory["num_alloc_retries"]
        row["reserved_gib"] = round(memory["reserved_bytes.all.current"] / 2**30, 2)
    print(json.dumps(row), flush=True)
    return row


def main() -> None:
    """Parses the command line, loads the shape once, runs the rounds."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shape", choices=sorted(SHAPES), default="tiny")
    parser.add_argument("--rows", type=int, nargs="*", default=[])
    parser.add_argument("--prompt", type=int, default=128, help="prompt tokens of each row")
    parser.add_argument("--tokens", type=int, default=256, help="output tokens of each row")
    parser.add_argument("--workload", nargs="*", default=[], help="W1 to W5 instead of rows")
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--option", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--log", action="store_true", help="show what the engine logs, captures among it")
    arguments = parser.parse_args()
    if arguments.log:
        logging.basicConfig(level=logging.INFO, format="%(asctime)s.%(msecs)03d %(message)s", datefmt="%S")

    from llm_engine import LLM, SamplingParams

    options = {}
    for option in arguments.option:
        name, _, value = option.partition("=")
        options[name] = json.loads(value)
    folder = write_shape(arguments.shape, Path(tempfile.mkdtemp()))
    started = time.perf_counter()
    llm = LLM(str(folder), load_format="dummy", **{"max_num_seqs": 256, "progress": False, **options})
    print(json.dumps({"shape": arguments.shape, "load_s": round(time.perf_counter() - started, 2)}))
    plain = {"temperature": 0.6, "ignore_eos": True, "detokenize": False}
    rows = []
    for count in arguments.rows:
        for index in range(arguments.rounds):
            prompts = [
                [(7 * i + 11 * j + 13 * index) % 1000 for j in range(arguments.prompt)] for i in range(count)
            ]
            params = SamplingParams(max_tokens=arguments.tokens, **plain)
            rows.append(run_round(llm, f"{count} rows, round {index}", prompts, params))
    every = make_workloads(scale=arguments.scale)
    for name in arguments.workload:
        work = every[name]
        for index in range(arguments.rounds):
            several = [SamplingParams(max_tokens=length, **plain) for length in work.output_lengths]
            rows.append(run_round(llm, f"{name}, round {index}", work.prompts_of_round(index), several))
    if arguments.out:
        arguments.out.write_text(json.dumps({"command": " ".join(sys.argv), "rows": rows}, indent=1) + "\n")
    llm.shutdown()


if __name__ == "__main__":
    main()
