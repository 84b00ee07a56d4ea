"""The host: versions, processor, memory, limits, the port. Reads files of Linux; elsewhere it says so."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from llm_stack_server.diagnosis.finding import Finding
from llm_stack_server.errors import StartupError
from llm_stack_server.listening import listen

PARTS = (
    "llm-stack-server",
    "llm-stack-engine",
    "llm-stack-models",
    "llm-stack-distributed",
    "llm-stack-kernels",
    "llm-stack-scheduler",
    "llm-stack-tokenizer",
    "llm-kvcache",
)
# What the kernels of torch and of ours make use of, where it is there.
_CPU_FLAGS = ("avx2", "fma", "avx512f", "avx512_bf16", "avx512_vnni", "amx_bf16", "asimd", "bf16", "sve")
_GIB = 2**30
_SMALL_MEMORY_BYTES = 2 * _GIB
_FEW_FILES = 4096  # a stream takes one


def look_at_versions() -> Iterator[Finding]:
    """All parts, which are of one version, and what they stand on."""
    own = version(PARTS[0])
    for name in PARTS:
        found = _version(name)
        if found is None:
            yield _broken("versions", name, "not installed", f"install {name}=={own}")
        elif found != own and name.startswith("llm-stack-"):
            yield _broken(
                "versions", name, found, f"the parts are made for each other: install {name}=={own}"
            )
        else:
            yield Finding(section="versions", name=name, value=found)
    for name in ("torch", "triton"):
        found = _version(name)
        if found is None and name == "torch":
            yield _broken("versions", name, "not installed", "install torch")
        else:
            yield Finding(section="versions", name=name, value=found or "not installed")
    yield Finding(section="versions", name="python", value=platform.python_version())
    yield Finding(section="versions", name="platform", value=platform.platform())


def look_at_processor(info: Path = Path("/proc/cpuinfo")) -> Iterator[Finding]:
    """The cores that may be used, and what they can do."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    name, flags = _cpu(info)
    yield Finding(section="processor", name="name", value=name)
    yield Finding(section="processor", name="cores", value=f"{usable} of {os.cpu_count()}")
    known = [flag for flag in _CPU_FLAGS if flag in flags]
    x86 = platform.machine().lower() in ("x86_64", "amd64")
    if x86 and flags and "avx2" not in flags:
        yield Finding(
            section="processor",
            name="features",
            value=", ".join(known) or "none of those in use",
            level="warning",
            advice="without AVX2 the CPU kernels are slow",
        )
    else:
        yield Finding(
            section="processor", name="features", value=", ".join(known) or "unknown on this system"
        )


def look_at_memory(
    info: Path = Path("/proc/meminfo"), limit: Path = Path("/sys/fs/cgroup/memory.max")
) -> Iterator[Finding]:
    """What can be had, and what a container allows."""
    free = available_bytes(info)
    if free is None:
        yield Finding(section="memory", name="available", value="unknown on this system")
        return
    small = free < _SMALL_MEMORY_BYTES
    yield Finding(
        section="memory",
        name="available",
        value=f"{free / _GIB:.1f} GiB",
        level="warning" if small else "ok",
        advice="small models only, or free some memory" if small else "",
    )
    most = _read(limit).strip()
    if most.isdigit():
        yield Finding(section="memory", name="limit of the container", value=f"{int(most) / _GIB:.1f} GiB")


def available_bytes(info: Path = Path("/proc/meminfo")) -> int | None:
    """Memory that new processes can have without swapping; None where the system does not say."""
    for line in _read(info).splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return None


def look_at_limits() -> Iterator[Finding]:
    """What the system lets one process have."""
    try:
        import resource
    except ImportError:  # not made for Windows
        yield Finding(section="limits", name="open files", value="unknown on this system")
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    unlimited = soft == resource.RLIM_INFINITY
    few = not unlimited and soft < _FEW_FILES
    yield Finding(
        section="limits",
        name="open files",
        value="unlimited" if unlimited else f"{soft:,} (may be raised to {hard:,})",
        level="warning" if few else "ok",
        advice=f"each connection takes one: raise it with ulimit -n {_FEW_FILES}" if few else "",
    )
    space = resource.getrlimit(resource.RLIMIT_AS)[0]
    if space != resource.RLIM_INFINITY:
        yield Finding(
            section="limits",
            name="address space",
            value=f"{space / _GIB:.1f} GiB",
            level="warning",
            advice="weights are mapped: lift the limit with ulimit -v unlimited",
        )


def look_at_port(host: str, port: int) -> Iterator[Finding]:
    """Whether `serve` could listen there."""
    name = f"{host} port {port}"
    try:
        listen(host, port).close()
    except StartupError as error:
        yield Finding(
            section="network",
            name=name,
            value=str(error),
            level="warning",
            advice="serve with another --port",
        )
    else:
        yield Finding(section="network", name=name, value="free")


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _cpu(info: Path) -> tuple[str, frozenset[str]]:
    name, flags = platform.processor() or platform.machine(), frozenset[str]()
    for line in _read(info).splitlines():
        key, _, value = (part.strip() for part in line.partition(":"))
        if key == "model name":
            name = value
        elif key in ("flags", "Features"):
            flags = frozenset(value.split())
            break
    return name, flags


def _read(path: Path) -> str:
    """The text of a file of the system; empty where there is none."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _broken(section: str, name: str, value: str, advice: str) -> Finding:
    return Finding(section=section, name=name, value=value, level="broken", advice=advice)
