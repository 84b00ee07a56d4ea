"""How many requests a minute the simulator gets through on one core, and where the time goes.

python benchmarks/simulator_speed.py                                # 256 rows, 512 tokens in, 64 out (means)
python benchmarks/simulator_speed.py --output-tokens uniform:64:192 # 128 out
python benchmarks/simulator_speed.py --profile                      # the functions that take longest

The figures are by processor time of this process, so that what else the machine does counts less; the wall
clock is printed beside them. Requests come faster than they are served: 256 rows are full all the time.
Drawing the workload and computing the report count too.
"""

import argparse
import cProfile
import pstats
import time
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from llm_scheduler import SchedulerConfig
from llm_scheduler.sim import (
    EngineSetup,
    Process,
    Simulator,
    StepTimeModel,
    SyntheticSpec,
    Workload,
    parse_lengths,
    synthesize,
)
from llm_scheduler.sim.metrics import make_report
from llm_scheduler.sim.recording import Recording

P = ParamSpec("P")
R = TypeVar("R")

TIMED = ("add", "schedule", "update", "stats")


class Stopwatch:
    """Adds up the wall time of calls, by name; costs about a microsecond a call."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    def watch(self, owner: object, name: str) -> None:
        """Replace a method of an object by one that is timed."""
        setattr(owner, name, self._timed(getattr(owner, name), name))

    def _timed(self, method: Callable[P, R], name: str) -> Callable[P, R]:
        self.seconds[name] = 0.0

        def timed(*args: P.args, **kwargs: P.kwargs) -> R:
            started = time.perf_counter()
            try:
                return method(*args, **kwargs)
            finally:
                self.seconds[name] += time.perf_counter() - started

        return timed


def make_simulator(args: argparse.Namespace) -> tuple[Workload, Simulator]:
    """The workload and a simulator for it, not yet run."""
    workload = synthesize(
        SyntheticSpec(
            num_requests=args.requests,
            process=Process.POISSON,
            rate=args.rate,
            prompt_tokens=parse_lengths(args.prompt_tokens),
            output_tokens=parse_lengths(args.output_tokens),
        )
    )
    config = SchedulerConfig(
        max_model_len=4096,
        max_num_seqs=args.rows,
        policy=args.policy,
        max_waiting_requests=2**31 - 1,
        max_waiting_tokens=2**31 - 1,
    )
    setup = EngineSetup(config=config, num_blocks=args.num_blocks, depth=args.depth)
    step_time = StepTimeModel(per_step_s=0.005, per_prefill_token_s=2e-5, per_decode_row_s=1e-5)
    return workload, Simulator(workload, setup, step_time)


def measure(
    args: argparse.Namespace, *, stopwatch: Stopwatch | None = None
) -> tuple[float, float, Recording]:
    """One whole simulation: processor seconds, wall seconds, what happened."""
    cpu, wall = time.process_time(), time.perf_counter()
    workload, simulator = make_simulator(args)
    if stopwatch:
        for name in TIMED:
            stopwatch.watch(simulator.scheduler, name)
    recording = simulator.run()
    make_report("speed", workload, recording, simulator.cache.stats())
    return time.process_time() - cpu, time.perf_counter() - wall, recording


def main() -> None:
    """Measure, then time the parts in a second run."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--rows", type=int, default=256)
    parser.add_argument("--rate", type=float, default=2000.0, help="arrivals a second on the simulated clock")
    parser.add_argument("--prompt-tokens", default="uniform:256:768")
    parser.add_argument("--output-tokens", default="uniform:32:96")
    parser.add_argument("--num-blocks", type=int, default=20_000)
    parser.add_argument("--policy", default="fcfs")
    parser.add_argument("--depth", type=int, default=2, choices=(1, 2))
    parser.add_argument("--profile", action="store_true", help="profile instead of measuring")
    args = parser.parse_args()
    if args.profile:
        with cProfile.Profile() as profile:
            measure(args)
        pstats.Stats(profile).sort_stats("tottime").print_stats(25)
        return
    cpu_s, wall_s, recording = measure(args)
    rows = sum(recording.steps.num_rows) / len(recording.steps)
    print(
        f"{args.requests / cpu_s * 60:,.0f} requests a minute by processor time ({cpu_s:.2f} s), "
        f"{args.requests / wall_s * 60:,.0f} by the wall clock; {len(recording.steps)} steps of {rows:.0f} "
        f"rows, {cpu_s / len(recording.steps) * 1e3:.2f} ms a step"
    )
    stopwatch = Stopwatch()
    _, wall_s, _ = measure(args, stopwatch=stopwatch)
    shares = {name: seconds / wall_s for name, seconds in stopwatch.seconds.items()}
    shares["the simulator itself"] = 1 - sum(shares.values())
    print("shares of a second run: " + ", ".join(f"{name} {share:.1%}" for name, share in shares.items()))


if __name__ == "__main__":
    main()
