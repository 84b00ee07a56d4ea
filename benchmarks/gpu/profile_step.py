"""Names the kernels of a decode or prefill step, their shares, the gaps: torch's profiler around an engine.

python3 benchmarks/gpu/profile_step.py --shape qwen3-8b --rows 256 64 --prompt 800 --steps 24
python3 benchmarks/gpu/profile_step.py --shape qwen3-0.6b --workload W1 W3    # all their steps, in ten parts
"""

import argparse
import json
import random
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from kernel_trace import Step, alike, launches_of, report, split_steps
from torch.profiler import ProfilerActivity, profile

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from shapes import SHAPES, write_shape
from workloads import Workload, make_workloads

if TYPE_CHECKING:
    from llm_engine import LLM

# Parts of a workload whose steps are told apart in its report.
_PARTS = 10


def generate(llm: "LLM", prompts: list[list[int]], lengths: list[int]) -> float:
    """Seconds of a batch."""
    from llm_engine import SamplingParams

    params = [
        SamplingParams(temperature=0.6, ignore_eos=True, max_tokens=length, detokenize=False)
        for length in lengths
    ]
    started = time.perf_counter()
    llm.generate(prompts, params, progress=False)
    return time.perf_counter() - started


def traced(llm: "LLM", prompts: list[list[int]], lengths: list[int]) -> list[Step]:
    """The steps of a batch."""
    with profile(activities=[ProfilerActivity.CUDA]) as work:
        generate(llm, prompts, lengths)
    return split_steps(launches_of(work))


def profile_rows(llm: "LLM", title: str, arguments: argparse.Namespace, rows: int) -> None:
    """Prints the steps that are alike: those that decode, where there are such.

    All rounds have the same prompts, so that with a prefix cache only the first computes them.
    """
    numbers = random.Random(rows)
    prompts = [[numbers.randint(100, 150_000) for _ in range(arguments.prompt)] for _ in range(rows)]
    lengths = [arguments.steps] * rows
    for _ in range(2):
        generate(llm, prompts, lengths)
    seconds = generate(llm, prompts, lengths)
    steps = traced(llm, prompts, lengths)
    print(f"\n{title}, {rows} rows, prompt {arguments.prompt}: {1000 * seconds:.1f} ms untraced")
    if steps:
        print("\n".join(report(alike(steps), arguments.top)), flush=True)


def profile_workload(llm: "LLM", title: str, arguments: argparse.Namespace, work: Workload) -> None:
    """Prints all steps of a workload's third round, and how they change over it."""
    seconds = [generate(llm, work.prompts_of_round(index), work.output_lengths) for index in range(2)]
    steps = traced(llm, work.prompts_of_round(2), work.output_lengths)
    print(f"\n{title}, {work.name}: {', '.join(f'{value:.3f}' for value in seconds)} s untraced")
    size = -(-len(steps) // _PARTS)
    for begin in range(0, len(steps), size):
        part = steps[begin : begin + size]
        print(f"steps {begin} on: " + report(part, 0)[0])
    print("\n".join(report(steps, arguments.top)), flush=True)


def main() -> None:
    """Parses the command line, loads the shape once, prints one line a kernel, the costliest first."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shape", choices=sorted(SHAPES), default="qwen3-0.6b")
    parser.add_argument("--rows", type=int, nargs="*", default=[1])
    parser.add_argument("--prompt", type=int, default=128)
    parser.add_argument(
        "--steps", type=int, default=16, help="tokens a row; the first comes from the prefill"
    )
    parser.add_argument("--workload", nargs="*", default=[], help="W1 to W6 in place of rows")
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
    llm = LLM(str(folder), load_format="dummy", **{"max_num_seqs": 256, "progress": False, **options})
    title = " ".join([arguments.shape, *arguments.option])
    for name in arguments.workload:
        profile_workload(llm, title, arguments, make_workloads()[name])
    for rows in () if arguments.workload else arguments.rows:
        profile_rows(llm, title, arguments, rows)
    llm.shutdown()


if __name__ == "__main__":
    main()
