"""``llm-stack models``: the architectures and how each is served; ``models check`` looks at a checkpoint."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable
from dataclasses import asdict
from typing import TYPE_CHECKING

from llm_stack_server.errors import ServerError

if TYPE_CHECKING:
    from llm_engine.model_catalog import CatalogEntry, CheckpointReport

_STANDINGS = ("native", "paged", "recompute", "unsupported")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags and the nested command."""
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    parser.add_argument("--standing", choices=_STANDINGS, help="only architectures of this standing")
    actions = parser.add_subparsers(dest="action", metavar="ACTION")
    check = actions.add_parser("check", help="say whether a checkpoint would load, without loading it")
    check.add_argument("model", help="folder, GGUF file, alias or hub id")
    check.add_argument("--offline", action="store_true", help="fetch nothing")
    check.add_argument("--allow-pickle", action="store_true", help="weights may be in pickle files")
    check.add_argument(
        "--trust-remote-code", action="store_true", help="code in the checkpoint may be run when it is loaded"
    )
    check.add_argument("--json", action="store_true", help="one JSON object")


def run(parsed: argparse.Namespace) -> int:
    """Print the list (0), or a report: 0 if the checkpoint would load, else 1."""
    if parsed.action == "check":
        return _check(parsed)
    from llm_engine.model_catalog import catalog

    entries = [item for item in catalog() if parsed.standing in (None, item.standing)]
    sys.stdout.writelines(_lines(entries, as_json=parsed.json))
    return 0


def _lines(entries: Iterable[CatalogEntry], *, as_json: bool) -> Iterable[str]:
    if as_json:
        return (json.dumps(asdict(item)) + "\n" for item in entries)
    rows = [(item.architecture, item.kind, item.standing, item.reason) for item in entries]
    widths = [max((len(row[column]) for row in rows), default=0) for column in range(3)]
    return (
        "  ".join([*(f"{text:<{width}}" for text, width in zip(row, widths, strict=False)), row[3]]).rstrip()
        + "\n"
        for row in rows
    )


def _check(parsed: argparse.Namespace) -> int:
    from llm_engine.model_catalog import ModelError, check_checkpoint

    try:
        report = check_checkpoint(
            parsed.model,
            offline=parsed.offline,
            allow_pickle=parsed.allow_pickle,
            trust_remote_code=parsed.trust_remote_code,
        )
    except ModelError as error:
        raise ServerError(str(error)) from error
    if parsed.json:
        sys.stdout.write(json.dumps(asdict(report)) + "\n")
    else:
        sys.stdout.writelines(f"{name:<18}{value}\n" for name, value in _rows(report))
    return 0 if report.loads else 1


def _rows(report: CheckpointReport) -> Iterable[tuple[str, str]]:
    yield "architecture", f"{report.architecture} ({report.standing}, {report.kind})"
    yield "would load", "yes" if report.problem is None else f"no: {report.problem}"
    if not report.num_parameters:
        return
    yield "parameters", f"{report.num_parameters:,}"
    yield "weights", f"{report.weight_bytes / 2**30:.2f} GiB in {report.dtype or 'a 16-bit format'}"
    yield "longest sequence", f"{report.max_positions:,} tokens"
    if report.caches:
        yield "caches", ", ".join(f"{count} x {kind}" for kind, count in report.caches)
        yield "a token adds", f"{report.kv_bytes_per_token:,} bytes of cache"
    if report.state_bytes:
        yield "a sequence keeps", f"{report.state_bytes:,} bytes of state"
    shared = ", ".join(str(ranks) for ranks in report.ranks) or "none of 2, 4, 8"
    yield "tensor parallel", shared
