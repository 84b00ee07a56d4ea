"""Options that several commands of ``llm-sim`` share, and the objects made from them; knows no command."""

from __future__ import annotations

import argparse
from dataclasses import fields

from llm_scheduler.config import SchedulerConfig
from llm_scheduler.sim.engine_setup import EngineSetup
from llm_scheduler.sim.errors import InvalidSetup, InvalidWorkload
from llm_scheduler.sim.lengths import parse_lengths
from llm_scheduler.sim.report import Slo
from llm_scheduler.sim.step_time import StepTimeModel
from llm_scheduler.sim.synthetic import Process, SyntheticSpec, TenantSpec, synthesize
from llm_scheduler.sim.traces import TraceFormat, read_trace
from llm_scheduler.sim.workload import Workload

_LENGTHS = "N, uniform:LOW:HIGH or lognormal:MEAN:SIGMA[:HIGH]"


def add_workload_options(parser: argparse.ArgumentParser) -> None:
    """Add what tells the workload: a trace, or a synthetic one."""
    trace = parser.add_argument_group("workload from a trace")
    trace.add_argument("--trace", metavar="FILE", help="read this trace instead of drawing a workload")
    trace.add_argument("--trace-format", choices=list(TraceFormat), help="default: told by the first line")
    both = parser.add_argument_group("any workload")
    both.add_argument("--max-requests", type=int, metavar="N", help="keep only the first N requests")
    both.add_argument(
        "--rate-scale", type=float, default=1.0, metavar="X", help="let all arrive X times as fast"
    )
    drawn = parser.add_argument_group("synthetic workload")
    drawn.add_argument(
        "--requests", type=int, default=1000, metavar="N", help="requests to draw (%(default)s)"
    )
    drawn.add_argument("--seed", type=int, default=0, help="same seed, same workload (%(default)s)")
    drawn.add_argument("--arrivals", choices=list(Process), default=Process.POISSON, help="(%(default)s)")
    drawn.add_argument("--rate", type=float, default=1.0, help="requests a second (%(default)s)")
    drawn.add_argument("--cv", type=float, default=2.0, help="variation of the gaps of gamma (%(default)s)")
    drawn.add_argument("--users", type=int, default=16, help="users of closed (%(default)s)")
    drawn.add_argument(
        "--think-s",
        type=float,
        default=0.0,
        metavar="S",
        help="mean pause of a user between requests (%(default)s)",
    )
    drawn.add_argument("--prompt-tokens", default="512", metavar="LEN", help=f"{_LENGTHS} (%(default)s)")
    drawn.add_argument("--output-tokens", default="128", metavar="LEN", help="likewise (%(default)s)")
    drawn.add_argument(
        "--declared-max-tokens",
        type=int,
        metavar="N",
        help="limit that the scheduler sees; requests then end by a stop token (default: the output length)",
    )
    drawn.add_argument(
        "--tenant",
        action="append",
        default=[],
        metavar="NAME[:SHARE[:WEIGHT[:PRIORITY]]]",
        help="a tenant, its share of the requests, its weight and its priority; may come several times",
    )
    drawn.add_argument(
        "--prefix-groups", type=int, default=0, metavar="N", help="shared prefixes (%(default)s)"
    )
    drawn.add_argument("--prefix-tokens", default="1024", metavar="LEN", help="length of each (%(default)s)")
    drawn.add_argument(
        "--prefix-share",
        type=float,
        default=1.0,
        metavar="P",
        help="share of requests with one (%(default)s)",
    )
    drawn.add_argument(
        "--prefix-zipf",
        type=float,
        default=0.0,
        metavar="A",
        help="popularity k**-A of prefix k (%(default)s)",
    )
    drawn.add_argument("--turns", default="1", metavar="LEN", help="turns of a conversation (%(default)s)")
    drawn.add_argument(
        "--deadline-s", type=float, metavar="S", help="seconds after arrival by which a request should end"
    )


def make_workload(args: argparse.Namespace) -> Workload:
    """Make the workload.

    Raises:
        TraceError, InvalidWorkload: It is malformed.
    """
    if args.trace is not None:
        trace_format = TraceFormat(args.trace_format) if args.trace_format else None
        limit = args.max_requests
        InvalidWorkload.require("max_requests", limit is None or limit >= 1, "expected at least 1")
        return read_trace(args.trace, trace_format, max_requests=limit).scaled(args.rate_scale)
    spec = SyntheticSpec(
        num_requests=args.requests,
        process=Process(args.arrivals),
        rate=args.rate,
        cv=args.cv,
        users=args.users,
        think_s=args.think_s,
        prompt_tokens=parse_lengths(args.prompt_tokens),
        output_tokens=parse_lengths(args.output_tokens),
        max_tokens=args.declared_max_tokens,
        tenants=tuple(map(_parse_tenant, args.tenant)) or (TenantSpec(name="default"),),
        prefix_groups=args.prefix_groups,
        prefix_tokens=parse_lengths(args.prefix_tokens),
        prefix_share=args.prefix_share,
        prefix_zipf=args.prefix_zipf,
        turns=parse_lengths(args.turns),
        deadline_s=args.deadline_s,
    )
    workload = synthesize(spec, args.seed).scaled(args.rate_scale)
    return workload if args.max_requests is None else workload.first(args.max_requests)


def _parse_tenant(text: str) -> TenantSpec:
    name, *values = text.split(":")
    InvalidWorkload.require(
        "tenant", len(values) <= 3, f"{text!r}: expected NAME[:SHARE[:WEIGHT[:PRIORITY]]]"
    )
    try:
        share = float(values[0]) if values else 1.0
        weight = float(values[1]) if len(values) > 1 else 1.0
        priority = int(values[2]) if len(values) > 2 else 0
    except ValueError:
        raise InvalidWorkload("tenant", f"{text!r}: expected numbers behind the name") from None
    return TenantSpec(name=name, share=share, weight=weight, priority=priority)


def add_engine_options(parser: argparse.ArgumentParser) -> None:
    """Add what tells the engine and how long its steps take."""
    time = parser.add_argument_group("step time")
    names = ", ".join(constant.name for constant in fields(StepTimeModel))
    time.add_argument(
        "--step-time",
        required=True,
        metavar="FILE|NAME=X,...",
        help=f"constants in seconds: a file that `llm-sim fit` wrote, or {names} with their values",
    )
    time.add_argument(
        "--host-s", type=float, default=0.0, metavar="S", help="host time of a step (%(default)s)"
    )
    engine = parser.add_argument_group("engine")
    engine.add_argument("--num-blocks", type=int, default=16384, metavar="N", help="KV blocks (%(default)s)")
    engine.add_argument(
        "--block-size", type=int, default=16, metavar="N", help="tokens a block (%(default)s)"
    )
    engine.add_argument("--no-prefix-caching", action="store_true", help="compute every prompt whole")
    engine.add_argument("--eviction", default="lru", help="policy of the cache: lru, lfu, ... (%(default)s)")
    engine.add_argument("--partial-reuse", action="store_true", help="find the first part of a block too")
    engine.add_argument("--depth", type=int, choices=(1, 2), default=2, help="plans in flight (%(default)s)")
    engine.add_argument(
        "--max-num-seqs", type=int, default=256, metavar="N", help="rows at once (%(default)s)"
    )
    engine.add_argument(
        "--max-num-batched-tokens", type=int, default=8192, metavar="N", help="tokens a step (%(default)s)"
    )
    engine.add_argument(
        "--max-model-len", type=int, metavar="N", help="default: as the longest request of the workload needs"
    )
    engine.add_argument(
        "--long-prefill-tokens", type=int, metavar="N", help="most tokens of one row in a step (no bound)"
    )
    engine.add_argument(
        "--max-waiting-requests", type=int, default=4096, metavar="N", help="bound of the queue (%(default)s)"
    )
    engine.add_argument(
        "--max-waiting-tokens", type=int, default=2**31 - 1, metavar="N", help="the same in tokens (no bound)"
    )
    engine.add_argument(
        "--max-retries", type=int, default=0, metavar="N", help="tries again after Busy (%(default)s)"
    )


def make_setup(args: argparse.Namespace, workload: Workload) -> EngineSetup:
    """Make the engine's settings, with the default scheduler and policy.

    Raises:
        InvalidSetup, InvalidConfig: A setting is outside its range.
    """
    longest = int((workload.prompt_tokens + workload.max_tokens).max())
    config = SchedulerConfig(
        max_model_len=longest if args.max_model_len is None else args.max_model_len,
        max_num_seqs=args.max_num_seqs,
        max_num_batched_tokens=args.max_num_batched_tokens,
        max_waiting_requests=args.max_waiting_requests,
        max_waiting_tokens=args.max_waiting_tokens,
        long_prefill_tokens=args.long_prefill_tokens,
    )
    return EngineSetup(
        config=config,
        num_blocks=args.num_blocks,
        block_size=args.block_size,
        depth=args.depth,
        host_s=args.host_s,
        prefix_caching=not args.no_prefix_caching,
        eviction=args.eviction,
        partial_reuse=args.partial_reuse,
        max_retries=args.max_retries,
    )


def make_step_time(args: argparse.Namespace) -> StepTimeModel:
    """Make the step-time model.

    Raises:
        TraceError, InvalidStepTime: It is malformed.
    """
    text: str = args.step_time
    return StepTimeModel.parse(text) if "=" in text else StepTimeModel.from_file(text)


def add_report_options(parser: argparse.ArgumentParser) -> None:
    """Add the bounds of goodput, and where results go."""
    slo = parser.add_argument_group("goodput")
    slo.add_argument("--slo-ttft", type=float, metavar="S", help="most seconds to the first token")
    slo.add_argument("--slo-itl", type=float, metavar="S", help="most seconds between tokens, request's mean")
    slo.add_argument("--slo-max-itl", type=float, metavar="S", help="most seconds between any two tokens")
    slo.add_argument("--slo-e2e", type=float, metavar="S", help="most seconds to the last token")
    out = parser.add_argument_group("output")
    out.add_argument(
        "--json", metavar="FILE", help="write the figures as JSON; - for stdout instead of the table"
    )
    out.add_argument("--plot", metavar="FILE", help="draw a picture (.png, .svg, .pdf); needs matplotlib")


def make_slo(args: argparse.Namespace) -> Slo:
    """Make the bounds of goodput.

    Raises:
        InvalidSetup: A bound is not positive.
    """
    return Slo(ttft_s=args.slo_ttft, itl_s=args.slo_itl, max_itl_s=args.slo_max_itl, e2e_s=args.slo_e2e)


def require_picture_name(path: str | None) -> None:
    """Refuse a picture's name without an ending before the long run, not after it.

    Raises:
        InvalidSetup: It has none.
    """
    InvalidSetup.require("plot", path is None or "." in path, f"expected a name like out.png, got {path}")


def parse_rates(text: str) -> list[float]:
    """Read rates as ``0.5,1,2``.

    Raises:
        InvalidSetup: It is no list of numbers.
    """
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise InvalidSetup("rates", f"expected numbers such as 0.5,1,2, got {text!r}") from None
