"""``llm-stack version``: the versions of all parts. Imports none of them but torch, for the device."""

from __future__ import annotations

import argparse
import platform
import sys
from importlib.metadata import PackageNotFoundError, version

PACKAGES = (
    "llm-stack-server",
    "llm-stack-engine",
    "llm-stack-models",
    "llm-stack-distributed",
    "llm-stack-kernels",
    "llm-stack-scheduler",
    "llm-stack-tokenizer",
    "llm-kvcache",
    "torch",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags."""
    parser.add_argument(
        "--short", action="store_true", help="the version alone, without asking torch for the device"
    )


def run(parsed: argparse.Namespace) -> int:
    """Print one line a part."""
    if parsed.short:
        sys.stdout.write(f"{version('llm-stack-server')}\n")
        return 0
    rows = [(name, _installed(name)) for name in PACKAGES]
    rows += [("python", platform.python_version()), ("platform", platform.platform()), ("device", _device())]
    width = max(len(name) for name, _ in rows)
    sys.stdout.writelines(f"{name:<{width}}  {value}\n" for name, value in rows)
    return 0


def _installed(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"


def _device() -> str:
    try:
        import torch
    except ImportError:
        return "unknown (torch cannot be imported)"
    if torch.cuda.is_available():
        return f"cuda ({torch.cuda.get_device_name(0)})"
    return "cpu"
