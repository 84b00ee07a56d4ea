"""``llm-stack bench``: throughput and latency of an engine, its cold start, a running server under load."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from llm_engine.options import EngineOptions

from llm_stack_server.bench import plots, provenance
from llm_stack_server.bench.workloads import Lengths, Workload, draw_workload, make_workloads
from llm_stack_server.cli.config_file import add_config_flag, read_config, require_model
from llm_stack_server.cli.flags import add_flags
from llm_stack_server.errors import ServerError

_KINDS = {
    "throughput": "tokens a second of a whole batch, offline",
    "latency": "seconds of batches of some sizes, offline",
    "startup": "seconds from a new process to its first token, by phase",
    "serve": "latencies and goodput of a running server under random arrivals",
}
_HIGHEST_ID = 10_000
_OWN = frozenset({"profile_start", "progress"})  # options that the measurements set themselves


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the kinds of measurement and their flags."""
    kinds = parser.add_subparsers(dest="kind", metavar="KIND", required=True)
    for kind, summary in _KINDS.items():
        command = kinds.add_parser(kind, help=summary, description=summary[0].upper() + summary[1:] + ".")
        _ADD[kind](command)
        command.add_argument("--out", type=Path, metavar="FILE", help="write the result there as JSON")
        command.add_argument("--plot", type=Path, metavar="FILE", help="draw it there (.png, .svg, .pdf)")


def run(parsed: argparse.Namespace) -> int:
    """Measure, print the result as one JSON object, and write what was asked for."""
    if parsed.plot is not None:
        plots.require_matplotlib()
    result = {"bench": parsed.kind, **provenance.describe_run(), **_RUN[parsed.kind](parsed)}
    text = json.dumps(result, indent=1)
    sys.stdout.write(text + "\n")
    if parsed.out is not None:
        parsed.out.write_text(text + "\n", encoding="utf-8")
    if parsed.plot is not None:
        _PLOT[parsed.kind](parsed.plot, result)
    return 0


# Throughput and latency


def _add_throughput(parser: argparse.ArgumentParser) -> None:
    _add_engine(parser)
    parser.add_argument(
        "--workload",
        choices=["random", *make_workloads(scale=0.001)],
        default="random",
        help="random, or one of docs/performance.md (default: random)",
    )
    parser.add_argument("--scale", type=float, default=1.0, metavar="SHARE", help="shrink W1, W2, ... so far")
    _add_requests(parser, requests=256, prompt="512", output="128")
    parser.add_argument("--rounds", type=int, default=2, metavar="N", help="repetitions; the best counts")


def _run_throughput(parsed: argparse.Namespace) -> dict[str, Any]:
    from llm_stack_server.bench.offline import run_throughput

    with _engine(parsed) as llm:
        workload = _workload(parsed, llm.vocab_size - 1)
        return {
            "device": provenance.describe_device(),
            "options": _options(parsed),
            "results": [run_throughput(llm, workload, temperature=parsed.temperature)],
        }


def _workload(parsed: argparse.Namespace, highest_id: int) -> Workload:
    if parsed.workload != "random":
        return make_workloads(scale=parsed.scale)[parsed.workload]
    return draw_workload(
        parsed.requests,
        parsed.input_tokens,
        parsed.output_tokens,
        highest_id=highest_id,
        seed=parsed.draw_seed,
        rounds=parsed.rounds,
    )


def _add_latency(parser: argparse.ArgumentParser) -> None:
    _add_engine(parser)
    parser.add_argument(
        "--batch-sizes",
        type=_sizes,
        default=[1, 8, 64],
        metavar="N,N",
        help="requests of a batch (default: 1,8,64)",
    )
    _add_lengths(parser, prompt="128", output="128")
    parser.add_argument("--rounds", type=int, default=3, metavar="N", help="repetitions (default: 3)")


def _run_latency(parsed: argparse.Namespace) -> dict[str, Any]:
    from llm_stack_server.bench.offline import run_latency

    with _engine(parsed) as llm:
        rows = run_latency(
            llm,
            parsed.batch_sizes,
            parsed.input_tokens,
            parsed.output_tokens,
            rounds=parsed.rounds,
            temperature=parsed.temperature,
        )
        return {
            "device": provenance.describe_device(),
            "options": _options(parsed),
            "results": list(rows),
        }


# Start-up


def _add_startup(parser: argparse.ArgumentParser) -> None:
    _add_engine(parser)
    parser.add_argument("--rounds", type=int, default=3, metavar="N", help="starts (default: 3)")
    parser.add_argument(
        "--warm",
        action="store_true",
        help="first fill the folder of compiled kernels, with batches of all kinds",
    )
    parser.add_argument(
        "--empty-cache", action="store_true", help="give every start an empty folder of compiled kernels"
    )
    parser.add_argument(
        "--timeout-s", type=float, default=600.0, metavar="S", help="most seconds of a start (default: 600)"
    )


def _run_startup(parsed: argparse.Namespace) -> dict[str, Any]:
    from llm_stack_server.bench.startup import run_starts, warm_kernels

    if parsed.warm and parsed.empty_cache:
        raise ServerError("warm: does not go with --empty-cache")
    if parsed.rounds < 1:
        raise ServerError(f"rounds: must be at least 1, got {parsed.rounds}")
    options = _options(parsed)
    EngineOptions.from_mapping(options)  # before a process is started for nothing
    warmed = warm_kernels(options, timeout_s=parsed.timeout_s) if parsed.warm else None
    rows = run_starts(
        options, rounds=parsed.rounds, empty_cache=parsed.empty_cache, timeout_s=parsed.timeout_s
    )
    best = min(rows, key=lambda row: row["wall_s"])
    sys.stderr.write(best.pop("table") + "\n")
    for row in rows:
        row.pop("table", None)
    warm = {} if warmed is None else {"warming_s": warmed["wall_s"] + warmed["warmed_s"]}
    return {
        "device": provenance.describe_device(),
        "options": options,
        "empty_cache": parsed.empty_cache,
        **warm,
        "best_wall_s": best["wall_s"],
        "results": rows,
    }


# A running server


def _add_serve(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--url", default="http://127.0.0.1:8000", help="of the server (default: port 8000 here)"
    )
    parser.add_argument("--model", help="its name on the server (default: the first that it lists)")
    parser.add_argument("--api-key", metavar="KEY", help="sent as a bearer token")
    parser.add_argument(
        "--rate",
        type=float,
        default=4.0,
        metavar="R",
        help="mean requests a second; inf: all at once (default: 4)",
    )
    _add_requests(parser, requests=100, prompt="512", output="128")
    parser.add_argument(
        "--highest-id",
        type=int,
        default=_HIGHEST_ID,
        metavar="ID",
        help=f"prompts are random token ids up to it (default: {_HIGHEST_ID})",
    )
    parser.add_argument(
        "--goodput",
        default="",
        metavar="NAME=MS,...",
        help="count requests within limits of ttft_ms, tpot_ms, e2e_ms, as in ttft_ms=200,tpot_ms=50",
    )


def _run_serve(parsed: argparse.Namespace) -> dict[str, Any]:
    # Here: what times an engine in this process needs no HTTP parser.
    from llm_stack_server.bench.http_stream import Endpoint
    from llm_stack_server.bench.serving import measure_server, parse_limits

    workload = draw_workload(
        parsed.requests,
        parsed.input_tokens,
        parsed.output_tokens,
        highest_id=parsed.highest_id,
        seed=parsed.draw_seed,
        rounds=1,
    )
    try:
        found = measure_server(
            Endpoint.parse(parsed.url, parsed.api_key),
            parsed.model,
            workload,
            rate_per_s=parsed.rate,
            seed=parsed.draw_seed,
            limits=parse_limits(parsed.goodput),
            temperature=parsed.temperature,
        )
    except OSError as error:
        raise ServerError(f"url: {parsed.url} cannot be reached: {error}") from error
    return {"url": parsed.url, "title": workload.title, "results": [found]}


# Flags


def _add_engine(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", nargs="?", default=argparse.SUPPRESS, help="an alias, a folder or a hub id")
    add_config_flag(parser)
    add_flags(parser, EngineOptions, skip={"model", *_OWN})


def _add_requests(parser: argparse.ArgumentParser, *, requests: int, prompt: str, output: str) -> None:
    parser.add_argument(
        "--requests", type=int, default=requests, metavar="N", help=f"how many (default: {requests})"
    )
    parser.add_argument(
        "--draw-seed", type=int, default=0, metavar="INT", help="of lengths, ids and arrivals (default: 0)"
    )
    _add_lengths(parser, prompt=prompt, output=output)


def _add_lengths(parser: argparse.ArgumentParser, *, prompt: str, output: str) -> None:
    for name, default, what in (("input", prompt, "a prompt"), ("output", output, "an answer")):
        parser.add_argument(
            f"--{name}-tokens",
            type=_lengths,
            default=Lengths.parse(default),
            metavar="N|LOW:HIGH",
            help=f"tokens of {what} (default: {default})",
        )
    parser.add_argument(
        "--temperature", type=float, default=0.6, metavar="FLOAT", help="of the draws (default: 0.6)"
    )


def _lengths(text: str) -> Lengths:
    try:
        return Lengths.parse(text)
    except ServerError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _sizes(text: str) -> list[int]:
    return [int(size) for size in text.split(",")]


def _options(parsed: argparse.Namespace) -> dict[str, Any]:
    """The engine's options that were given, by name: as flags or in a file."""
    read_config(parsed, skip=_OWN)
    require_model(parsed)
    return {
        field.name: getattr(parsed, field.name)
        for field in fields(EngineOptions)
        if field.name in vars(parsed)
    }


def _engine(parsed: argparse.Namespace) -> Any:  # noqa: ANN401 - imported late
    from llm_engine import LLM

    options = _options(parsed)
    return LLM(options.pop("model"), progress=False, **options)


# Plots


def _plot_throughput(path: Path, result: Mapping[str, Any]) -> None:
    row = result["results"][0]
    bars = [("input", row["input_tokens_per_s"]), ("output", row["output_tokens_per_s"])]
    plots.draw_bars(path, row["title"], "tokens/s", bars)


def _plot_latency(path: Path, result: Mapping[str, Any]) -> None:
    bars = [(f"{row['batch_size']} requests", row["step_ms"]) for row in result["results"]]
    plots.draw_bars(path, "decode step", "milliseconds", bars)


def _plot_startup(path: Path, result: Mapping[str, Any]) -> None:
    best = min(result["results"], key=lambda row: row["wall_s"])
    leaves: Sequence[tuple[str, float]] = [
        (phase["name"], phase["seconds"]) for phase in best["phases"] if phase["is_leaf"]
    ]
    plots.draw_bars(path, f"start in {best['wall_s']:.1f} s", "seconds", leaves)


def _plot_serve(path: Path, result: Mapping[str, Any]) -> None:
    row = result["results"][0]
    groups = {name: row[f"{name}_ms"] for name in ("ttft", "itl", "tpot", "e2e") if row[f"{name}_ms"]}
    plots.draw_latencies(path, result["title"], groups)


_ADD = {
    "throughput": _add_throughput,
    "latency": _add_latency,
    "startup": _add_startup,
    "serve": _add_serve,
}
_RUN = {
    "throughput": _run_throughput,
    "latency": _run_latency,
    "startup": _run_startup,
    "serve": _run_serve,
}
_PLOT = {
    "throughput": _plot_throughput,
    "latency": _plot_latency,
    "startup": _plot_startup,
    "serve": _plot_serve,
}
