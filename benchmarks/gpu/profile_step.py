"""Names the kernels of a decode or prefill step and their shares: torch's profiler around a running engine.

python3 benchmarks/gpu/profile_step.py --shape qwen3-8b --rows 256 --prompt 512 --steps 16
python3 benchmarks/gpu/profile_step.py --shape qwen3-0.6b --rows 2 --prompt 4096 --steps 1    # prefill
"""

import argparse
import json
import random
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.profiler import ProfilerActivity, profile

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from shapes import SHAPES, write_shape

if TYPE_CHECKING:
    from llm_engine import LLM


def run(llm: "LLM", rows: int, prompt: int, steps: int, seed: int) -> float:
    """Seconds of a batch with fresh prompts."""
    from llm_engine import SamplingParams

    rng = random.Random(seed)
    prompts = [[rng.randint(100, 150_000) for _ in range(prompt)] for _ in range(rows)]
    params = SamplingParams(temperature=0.6, ignore_eos=True, max_tokens=steps, detokenize=False)
    started = time.perf_counter()
    llm.generate(prompts, params, progress=False)
    return time.perf_counter() - started


def kernel_times(work: Any) -> tuple[dict[str, list[float]], float]:  # noqa: ANN401 - a torch profile
    """Microseconds of each launch by kernel, and from the first launch's begin to the last one's end."""
    times: dict[str, list[float]] = defaultdict(list)
    begins, ends = [], []
    for event in work.events():
        if event.device_type == torch.autograd.DeviceType.CUDA:
            times[event.name].append(event.time_range.elapsed_us())
            begins.append(event.time_range.start)
            ends.append(event.time_range.end)
    return times, (max(ends) - min(begins) if begins else 0.0)


def main() -> None:
    """Prints one line a kernel, the costliest first."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shape", choices=sorted(SHAPES), default="qwen3-0.6b")
    parser.add_argument("--rows", type=int, default=1)
    parser.add_argument("--prompt", type=int, default=128)
    parser.add_argument(
        "--steps", type=int, default=16, help="tokens a row; the first comes from the prefill"
    )
    parser.add_argument("--top", type=int, default=24)
    parser.add_argument(
        "--option", action="append", default=[], metavar="NAME=VALUE", help="an engine option"
    )
    arguments = parser.parse_args()
    options = {}
    for option in arguments.option:
        name, _, value = option.partition("=")
        options[name] = json.loads(value)

    from llm_engine import LLM

    folder = write_shape(arguments.shape, Path(tempfile.mkdtemp()))
    llm = LLM(str(folder), load_format="dummy", max_num_seqs=256, progress=False, **options)
    shape = (arguments.rows, arguments.prompt, arguments.steps)
    for seed in range(2):
        run(llm, *shape, seed)
    seconds = run(llm, *shape, 2)
    with profile(activities=[ProfilerActivity.CUDA]) as work:
        run(llm, *shape, 3)
    times, span_us = kernel_times(work)
    total = sum(map(sum, times.values()))
    print(
        f"{arguments.shape}, {shape[0]} rows, prompt {shape[1]}, {shape[2]} tokens: "
        f"{1000 * seconds:.2f} ms without the profiler; kernels {total / 1000:.2f} ms of {span_us / 1000:.2f}"
    )
    for name, values in sorted(times.items(), key=lambda item: -sum(item[1]))[: arguments.top]:
        mean = sum(values) / len(values)
        print(f"{100 * sum(values) / total:5.1f} % {len(values):6d} x {mean:8.2f} us  {name[:110]}")
    llm.shutdown()


if __name__ == "__main__":
    main()
