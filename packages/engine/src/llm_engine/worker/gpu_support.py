"""Whether this build of torch can use the GPUs of this machine; knows nothing of models or of kernels."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path

import torch

from llm_engine.worker.errors import InvalidOption

_DEVICE_FILES = Path("/dev")
_BUILT_FOR = re.compile(r"(sm|compute)_(\d+)(\d)[a-z]?$")


def check_no_gpu_is_passed_over(device_files: Path = _DEVICE_FILES) -> None:
    """Refuse to take the CPU by itself where there is a GPU that torch cannot use.

    Raises:
        InvalidOption: There is one; says why, and what to do.
    """
    if not any(device_files.glob("nvidia[0-9]*")) or _is_hidden():
        return
    built_for = torch.version.cuda
    if built_for is None:
        why = "this torch is made for CPUs only: install one made for CUDA"
    else:
        why = f"torch is made for CUDA {built_for} and cannot use it: {_fault()}; is the driver too old?"
    raise InvalidOption("device", f"there is an NVIDIA GPU, but {why}; device=cpu runs without it")


def check_architecture(device: torch.device) -> None:
    """Refuse a GPU that torch holds no code for, before anything runs on it.

    Raises:
        InvalidOption: Names its architecture and those that torch is made for.
    """
    capability = torch.cuda.get_device_capability(device)
    built_for = torch.cuda.get_arch_list()
    if not built_for or _runs_on(capability, built_for):
        return
    name, (major, minor) = torch.cuda.get_device_name(device), capability
    raise InvalidOption(
        "device",
        f"{name} is of architecture sm_{major}{minor}, and this torch holds code for {', '.join(built_for)}: "
        "install one made for it, or use device=cpu",
    )


def _runs_on(capability: tuple[int, int], built_for: Iterable[str]) -> bool:
    """Code for sm_XY runs on X.Y and later of X; compute_XY can be compiled for all later ones."""
    for name in built_for:
        found = _BUILT_FOR.fullmatch(name)
        if found is None:
            continue
        version = (int(found[2]), int(found[3]))
        if version <= capability and (found[1] == "compute" or version[0] == capability[0]):
            return True
    return False


def _is_hidden() -> bool:
    """Whether CUDA's own variable hides all GPUs, which asks for the CPU."""
    return os.environ.get("CUDA_VISIBLE_DEVICES", "all").strip() in ("", "-1", "NoDevFiles")


def _fault() -> str:
    try:
        torch.cuda.init()  # type: ignore[no-untyped-call]
    except (RuntimeError, AssertionError) as error:
        return str(error).splitlines()[0][:200]
    return "no device is visible"
