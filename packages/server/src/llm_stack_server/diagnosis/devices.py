"""The GPUs and the kernels that would run. Knows nothing of models."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from llm_stack_server.diagnosis.finding import Finding

_GIB = 2**30
_DRIVER_FILE = Path("/proc/driver/nvidia/version")


def look_at_gpus() -> Iterator[Finding]:
    """The CUDA devices that torch sees, and their memory."""
    import torch

    built_for = torch.version.cuda
    yield Finding(section="gpu", name="torch is made for", value=f"CUDA {built_for}" if built_for else "CPU")
    if not torch.cuda.is_available():
        yield _no_gpu(built_for)
        return
    for index in range(torch.cuda.device_count()):
        major, minor = torch.cuda.get_device_capability(index)
        title = f"{torch.cuda.get_device_name(index)}, compute capability {major}.{minor}"
        try:
            free, total = torch.cuda.mem_get_info(index)
        except RuntimeError as error:
            yield Finding(
                section="gpu",
                name=f"cuda:{index}",
                value=f"{title}: {str(error).splitlines()[0]}",
                level="broken",
                advice="the device cannot be used: see nvidia-smi and the system's log",
            )
            continue
        value = f"{title}, {free / _GIB:.1f} of {total / _GIB:.1f} GiB free"
        taken = free < total / 2
        yield Finding(
            section="gpu",
            name=f"cuda:{index}",
            value=value,
            level="warning" if taken else "ok",
            advice="others hold its memory: see nvidia-smi" if taken else "",
        )


def _no_gpu(built_for: str | None) -> Finding:
    if not _DRIVER_FILE.exists():
        return Finding(section="gpu", name="devices", value="none: there is no NVIDIA driver")
    advice = "install a torch made for CUDA" if built_for is None else "the driver may be too old: nvidia-smi"
    return Finding(
        section="gpu",
        name="devices",
        value="none that torch can use, though there is a driver",
        level="broken",
        advice=advice,
    )


def look_at_kernels() -> Iterator[Finding]:
    """What runs each op on the CPU and, where there is one, on the GPU; and why not something better."""
    import torch
    from llm_engine.kernel_catalog import describe_backends, library_path

    has_gpu = torch.cuda.is_available()
    yield Finding(section="kernels", name="torch on the CPU", value=torch.backends.cpu.get_cpu_capability())
    for device in ("cpu", "cuda"):
        path = library_path(device)
        yield Finding(
            section="kernels",
            name=f"{device} library",
            value=str(path or "not installed"),
            level="ok" if path is not None or device == "cuda" else "broken",
            advice="" if path is not None or device == "cuda" else "install llm-stack-kernels from a wheel",
        )
    for device in ("cpu", "cuda") if has_gpu else ("cpu",):
        yield from _look_at_choices(device)
    reasons: Counter[tuple[str, str]] = Counter(
        (status.backend, status.reason or "")
        for status in describe_backends()
        if not status.available and status.priority >= 0
    )
    for (backend, reason), count in sorted(reasons.items()):
        yield Finding(section="kernels", name=f"not {backend}", value=f"{reason} ({count} ops)")


def _look_at_choices(device: str) -> Iterator[Finding]:
    from llm_engine.kernel_catalog import kernel_choices

    ops: dict[str, list[str]] = {}
    for choice in kernel_choices(device):
        if choice.backend is None:
            yield Finding(
                section="kernels",
                name=f"{device}: {choice.op}",
                value="no back end",
                level="broken",
                advice="install llm-stack-kernels and torch anew",
            )
            continue
        ops.setdefault(choice.backend, []).append(choice.op)
        # Each installation has C++ kernels; those in CUDA are for Hopper, and not missed elsewhere.
        missed = [(name, why) for name, why in choice.passed_over if name in ("cpp", "triton")]
        for name, why in missed:
            yield Finding(
                section="kernels",
                name=f"{device}: {choice.op}",
                value=f"{choice.backend} instead of {name}: {why}",
                level="warning",
                advice="it is slower so",
            )
    for backend, names in ops.items():
        yield Finding(section="kernels", name=f"{device}: {backend}", value=", ".join(names))
