"""What a reader must know to judge a measurement: commit, versions, machine, device, command."""

import platform
import subprocess
import sys
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

_PACKAGES = ("llm-stack-server", "llm-stack-engine", "llm-stack-kernels", "torch", "triton")


def describe_run() -> dict[str, Any]:
    """Facts about this run, as plain data for JSON."""
    return {
        "date": time.strftime("%Y-%m-%d %H:%M:%S %Z"),
        "commit": _commit(),
        "versions": {name: _version(name) for name in _PACKAGES},
        "python": platform.python_version(),
        "platform": platform.platform(),
        "command": " ".join(sys.argv),
    }


def describe_device() -> str:
    """The GPU's name, or the processor's. Imports torch."""
    import torch

    if torch.cuda.is_available():
        return str(torch.cuda.get_device_name())
    return platform.processor() or platform.machine()


def _commit() -> str | None:
    """The checkout's commit, marked where files differ from it; None outside a checkout."""
    command = ["git", "describe", "--always", "--dirty", "--exclude=*"]
    folder = Path(__file__).parent
    try:
        found = subprocess.run(  # noqa: S603 - fixed arguments
            command, cwd=folder, capture_output=True, text=True, check=False
        )
    except OSError:  # there is no git here
        return None
    return found.stdout.strip() or None


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
