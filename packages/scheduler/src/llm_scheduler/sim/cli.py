"""The command line ``llm-sim``; knows nothing of how anything is computed."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, fields, replace
from importlib.util import find_spec
from pathlib import Path

from llm_scheduler.errors import InvalidResult, PlanOrderError, SchedulerError
from llm_scheduler.sim import cli_options as options
from llm_scheduler.sim.errors import PlottingUnavailable, SchedulerFault, SchedulerStalled
from llm_scheduler.sim.json_trace import write_json_trace
from llm_scheduler.sim.plan_records import is_plan_record, step_records_of
from llm_scheduler.sim.plots import draw, draw_sweep
from llm_scheduler.sim.report import Distribution, Report
from llm_scheduler.sim.request_table import write_request_table
from llm_scheduler.sim.running import Simulation, compare, simulate
from llm_scheduler.sim.step_time import read_step_records
from llm_scheduler.sim.step_time_fit import StepTimeFit, fit_step_time
from llm_scheduler.sim.sweeping import format_sweep, sweep
from llm_scheduler.sim.table import format_table
from llm_scheduler.sim.workload_summary import WorkloadSummary, summarize

EXIT_OK = 0
EXIT_OUTPUT = 1
EXIT_USAGE = 2
EXIT_SCHEDULER = 3

_EXIT_CODES = """exit codes:
  0  done
  1  an output could not be written
  2  wrong options, an unreadable input, or a scheduler that cannot be loaded
  3  the scheduler stalled or broke its protocol
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``llm-sim`` and return its exit code.

    Args:
        argv: The words behind the command's name; those of the process where left out.
    """
    args = _make_parser().parse_args(argv)
    command: Callable[[argparse.Namespace], None] = args.command
    try:
        command(args)
    except (SchedulerStalled, SchedulerFault, PlanOrderError, InvalidResult) as error:
        return _fail(error, EXIT_SCHEDULER)
    except SchedulerError as error:
        return _fail(error, EXIT_USAGE)
    except OSError as error:
        return _fail(error, EXIT_OUTPUT)
    return EXIT_OK


def _fail(error: Exception, code: int) -> int:
    sys.stderr.write(f"llm-sim: {type(error).__name__}: {error}\n")
    return code


def _make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="llm-sim",
        description="Simulate LLM serving: the real scheduler and KV cache, a simulated clock.",
        epilog=_EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    _add_run(commands)
    _add_compare(commands)
    _add_sweep(commands)
    _add_fit(commands)
    _add_trace(commands)
    return parser


def _add_command(
    commands: argparse._SubParsersAction[argparse.ArgumentParser],
    name: str,
    command: Callable[[argparse.Namespace], None],
    summary: str,
    example: str,
) -> argparse.ArgumentParser:
    parser = commands.add_parser(
        name,
        help=summary,
        description=f"{summary[0].upper()}{summary[1:]}.",
        epilog=f"example:\n  {example}\n\n{_EXIT_CODES}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(command=command)
    return parser


# run and compare


def _add_run(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    example = "llm-sim run --rate 20 --step-time per_step_s=0.006,per_prefill_token_s=2e-5 --slo-ttft 0.5"
    parser = _add_command(commands, "run", _run, "simulate one policy or scheduler on a workload", example)
    parser.add_argument("--policy", default="fcfs", help="policy of the scheduler (%(default)s)")
    parser.add_argument(
        "--scheduler",
        default="default",
        metavar="NAME",
        help="an installed one, or module:Class (%(default)s)",
    )
    parser.add_argument("--per-request", metavar="FILE", help="write one CSV row a request")
    _add_shared_options(parser)


def _add_compare(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    example = "llm-sim compare fcfs priority my_package:MyScheduler --trace chat.jsonl --step-time h200.json"
    summary = "simulate several policies or schedulers on the same workload, side by side"
    parser = _add_command(commands, "compare", _compare, summary, example)
    _add_names(parser)
    _add_shared_options(parser)


def _add_sweep(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    example = (
        "llm-sim sweep fcfs prefix --rates 0.5,1,2,4 --trace chat.jsonl --step-time h200.json --slo-ttft 1"
    )
    summary = "simulate policies or schedulers at several rates of arrival"
    parser = _add_command(commands, "sweep", _sweep, summary, example)
    _add_names(parser)
    parser.add_argument(
        "--rates", default="0.5,1,1.5,2", metavar="X,...", help="times the workload's rate (%(default)s)"
    )
    _add_shared_options(parser)


def _add_names(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "names",
        nargs="+",
        metavar="NAME",
        help="a policy, an installed scheduler, module:Class of either, or SCHEDULER@POLICY; with /EVICTION "
        "behind it another eviction policy of the cache",
    )


def _add_shared_options(parser: argparse.ArgumentParser) -> None:
    options.add_workload_options(parser)
    options.add_engine_options(parser)
    options.add_report_options(parser)


def _run(args: argparse.Namespace) -> None:
    _require_plotting(args)
    workload = options.make_workload(args)
    setup = options.make_setup(args, workload)
    setup = replace(setup, scheduler=args.scheduler, config=replace(setup.config, policy=args.policy))
    simulation = simulate(workload, setup, options.make_step_time(args), slo=options.make_slo(args))
    if args.per_request:
        write_request_table(args.per_request, workload, simulation.recording)
    _write_results(args, [simulation], simulation.report.to_json())


def _compare(args: argparse.Namespace) -> None:
    _require_plotting(args)
    workload = options.make_workload(args)
    setup = options.make_setup(args, workload)
    step_time, slo = options.make_step_time(args), options.make_slo(args)
    simulations = compare(workload, setup, step_time, args.names, slo=slo)
    reports = [json.loads(simulation.report.to_json()) for simulation in simulations]
    _write_results(args, simulations, json.dumps(reports, indent=1) + "\n")


def _sweep(args: argparse.Namespace) -> None:
    _require_plotting(args)
    rates = options.parse_rates(args.rates)
    workload = options.make_workload(args)
    setup = options.make_setup(args, workload)
    step_time, slo = options.make_step_time(args), options.make_slo(args)
    points = sweep(workload, setup, step_time, args.names, rates, slo=slo)
    as_data = [{**asdict(point), "report": json.loads(point.report.to_json())} for point in points]
    _write_json_or_table(args, json.dumps(as_data, indent=1) + "\n", format_sweep(points))
    if args.plot:
        draw_sweep(points, args.plot)


def _require_plotting(args: argparse.Namespace) -> None:
    """Refuse a picture that cannot be drawn before the long run, not after it."""
    options.require_picture_name(args.plot)
    if args.plot and find_spec("matplotlib") is None:
        raise PlottingUnavailable


def _write_results(args: argparse.Namespace, simulations: Sequence[Simulation], as_json: str) -> None:
    reports: list[Report] = [simulation.report for simulation in simulations]
    _write_json_or_table(args, as_json, format_table(reports))
    if args.plot:
        draw(simulations, args.plot)


def _write_json_or_table(args: argparse.Namespace, as_json: str, table: str) -> None:
    sys.stdout.write(as_json if args.json == "-" else table)
    if args.json and args.json != "-":
        Path(args.json).write_text(as_json, encoding="utf-8")


# fit


def _add_fit(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    summary = "fit a step-time model to the recorded steps of a run"
    parser = _add_command(commands, "fit", _fit, summary, "llm-sim fit steps.jsonl --output h200.json")
    parser.add_argument(
        "records", metavar="FILE", help="a record of llm_scheduler.recording, or JSONL with one step a line"
    )
    parser.add_argument("--output", metavar="FILE", help="write the constants, for --step-time")


def _fit(args: argparse.Namespace) -> None:
    records = (
        step_records_of(args.records) if is_plan_record(args.records) else read_step_records(args.records)
    )
    fit = fit_step_time(records)
    sys.stdout.write(_format_fit(fit))
    if args.output:
        Path(args.output).write_text(fit.model.to_json(), encoding="utf-8")


def _format_fit(fit: StepTimeFit) -> str:
    lines = [f"{constant.name:22}{getattr(fit.model, constant.name):.6g}" for constant in fields(fit.model)]
    lines.append(
        f"fitted to {fit.num_steps} steps: R2 {fit.r_squared:.5f}, relative error mean "
        f"{fit.mean_relative_error:.2%}, max {fit.max_relative_error:.2%}"
    )
    if fit.unseen:
        lines.append(f"never seen in the records, so 0: {', '.join(fit.unseen)}")
    if fit.ambiguous:
        lines.append(f"not told apart by the records: {', '.join(fit.ambiguous)}")
    return "\n".join(lines) + "\n"


# trace


def _add_trace(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    summary = "describe a trace or a synthetic workload, and write it in the simulator's own format"
    example = "llm-sim trace --trace AzureLLMInferenceTrace_conv.csv --rate-scale 2 --output conv2.jsonl"
    parser = _add_command(commands, "trace", _trace, summary, example)
    options.add_workload_options(parser)
    out = parser.add_argument_group("output")
    out.add_argument("--output", metavar="FILE", help="write the workload as JSONL")
    out.add_argument("--json", action="store_true", help="print the description as JSON")


def _trace(args: argparse.Namespace) -> None:
    workload = options.make_workload(args)
    summary = summarize(workload)
    sys.stdout.write(json.dumps(asdict(summary), indent=1) + "\n" if args.json else _format_summary(summary))
    if args.output:
        write_json_trace(args.output, workload)


def _format_summary(summary: WorkloadSummary) -> str:
    rate = "all at once" if summary.requests_per_s is None else f"{summary.requests_per_s:.3g} a second"
    return (
        f"requests        {summary.requests}, {summary.follow_ups} of them start after another one\n"
        f"arrivals        over {summary.span_s:,.1f} s, {rate}\n"
        f"prompt tokens   {_format_lengths(summary.prompt_tokens)}\n"
        f"output tokens   {_format_lengths(summary.output_tokens)}\n"
        f"tenants         {summary.tenants}\n"
        f"repeated        {summary.repeated_share:.1%} of the prompt tokens\n"
    )


def _format_lengths(lengths: Distribution) -> str:
    return (
        f"p50 / p90 / p99 / max {lengths.p50:.0f} / {lengths.p90:.0f} / {lengths.p99:.0f} / {lengths.max:.0f}"
    )
