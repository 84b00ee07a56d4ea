"""Owns what front ends may ask about kernels without running one; the answers are those of `llm_kernels`."""

import logging
from dataclasses import dataclass
from importlib.metadata import files
from pathlib import Path

import torch
from llm_kernels.errors import BackendUnavailable
from llm_kernels.ops import BackendStatus, describe_backends, selected

__all__ = ["BackendStatus", "KernelChoice", "describe_backends", "kernel_choices", "library_path"]

_DISTRIBUTION = "llm-stack-kernels"
_LIBRARIES = {"cpu": "libllm_kernels", "cuda": "libllm_kernels_cuda"}


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelChoice:
    """What runs an op on a device.

    Attributes:
        op: The op's name.
        backend: The back end that a call of usual size takes; None where there is none.
        passed_over: Back ends for the device that would come before it and cannot run, each with the reason.
    """

    op: str
    backend: str | None
    passed_over: tuple[tuple[str, str], ...]


def kernel_choices(device: str) -> tuple[KernelChoice, ...]:
    """For every op what runs it on ``device`` ("cpu" or "cuda"), in the number format that is usual there."""
    dtype = torch.float32 if device == "cpu" else torch.bfloat16
    by_op: dict[str, list[BackendStatus]] = {}
    for status in describe_backends():
        by_op.setdefault(status.op, []).append(status)
    log = logging.getLogger("llm_kernels")
    level = log.level
    log.setLevel(logging.ERROR)  # it would tell of each back end that is passed over; so does the answer
    try:
        return tuple(_choice(op, statuses, device, dtype) for op, statuses in by_op.items())
    finally:
        log.setLevel(level)


def library_path(device: str) -> Path | None:
    """The file of the compiled kernels for ``device`` ("cpu" or "cuda"); None where it was not installed."""
    wanted = _LIBRARIES[device]
    found = (entry for entry in files(_DISTRIBUTION) or () if entry.name.split(".")[0] == wanted)
    paths = (Path(str(entry.locate())) for entry in found)
    return next((path for path in paths if path.exists()), None)


def _choice(op: str, statuses: list[BackendStatus], device: str, dtype: torch.dtype) -> KernelChoice:
    try:
        backend = selected(op, device, dtype)
    except BackendUnavailable:
        backend = None
    priority = next((status.priority for status in statuses if status.backend == backend), -1)
    passed_over = tuple(
        (status.backend, status.reason or "")
        for status in statuses
        if not status.available
        and not status.backend.endswith("_invariant")  # asked for in deterministic mode only
        and status.priority > max(priority, -1)
        and (status.devices is None or device in status.devices)
    )
    return KernelChoice(op=op, backend=backend, passed_over=passed_over)
