"""``llm-stack doctor``: looks at the machine, and at a model, and says what works and what to do."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict

from llm_stack_server.diagnosis import devices, host
from llm_stack_server.diagnosis.checkpoint import look_at_model
from llm_stack_server.diagnosis.finding import Finding

_MARKS = {"ok": " ", "warning": "!", "broken": "X"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the model and the flags."""
    parser.add_argument(
        "model", nargs="?", help="an alias, a folder, a .gguf file or a hub id to look at too"
    )
    parser.add_argument("--host", default="127.0.0.1", metavar="STR", help="address that serve would take")
    parser.add_argument("--port", type=int, default=8000, metavar="INT", help="port that serve would take")
    parser.add_argument("--offline", action="store_true", help="fetch nothing")
    parser.add_argument("--json", action="store_true", help="one JSON object")


def run(parsed: argparse.Namespace) -> int:
    """Print what was found: 0, or 1 where something is broken."""
    findings = list(_look(parsed))
    if parsed.json:
        broken = any(finding.level == "broken" for finding in findings)
        told = {"ok": not broken, "findings": [asdict(finding) for finding in findings]}
        sys.stdout.write(json.dumps(told) + "\n")
    else:
        sys.stdout.writelines(line + "\n" for line in _lines(findings))
    return 1 if any(finding.level == "broken" for finding in findings) else 0


def _look(parsed: argparse.Namespace) -> Iterator[Finding]:
    yield from host.look_at_versions()
    yield from host.look_at_processor()
    yield from host.look_at_memory()
    yield from host.look_at_limits()
    yield from host.look_at_port(parsed.host, parsed.port)
    yield from _unless_missing("gpu", devices.look_at_gpus())
    yield from _unless_missing("kernels", devices.look_at_kernels())
    if parsed.model is not None:
        yield from _unless_missing("model", look_at_model(parsed.model, offline=parsed.offline))


def _unless_missing(section: str, findings: Iterator[Finding]) -> Iterator[Finding]:
    """The findings; what cannot be imported is one of them, since to find that is its purpose."""
    try:
        yield from findings
    except (ImportError, OSError) as error:  # OSError: a library that torch or the kernels load
        yield Finding(
            section=section,
            name="import",
            value=" ".join(str(error).split()),
            level="broken",
            advice="install what is missing; see versions",
        )


def _lines(findings: Sequence[Finding]) -> Iterable[str]:
    width = max(len(finding.name) for finding in findings)
    section = ""
    for finding in findings:
        if finding.section != section:
            section = finding.section
            yield section
        yield f"{_MARKS[finding.level]} {finding.name:<{width}}  {finding.value}"
        if finding.advice:
            yield f"  {'':<{width}}  -> {finding.advice}"
    broken = sum(finding.level == "broken" for finding in findings)
    warnings = sum(finding.level == "warning" for finding in findings)
    yield f"{broken} broken (X), {warnings} warnings (!)"
