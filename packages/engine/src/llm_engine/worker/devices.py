"""Which device, number format and graphs to use; knows nothing of models but one key of their config."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from llm_engine.worker.errors import InvalidOption
from llm_engine.worker.gpu_support import check_architecture, check_no_gpu_is_passed_over

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def pick_device(name: str, rank: int = 0) -> torch.device:
    """The device meant by "auto", "cpu", "cuda" or "cuda:N"; where no number is named, that of the rank.

    Raises:
        InvalidOption: No such device on this machine, or one that this build of torch cannot use.
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
        if name == "cpu":
            check_no_gpu_is_passed_over()
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise InvalidOption("device", f"{name!r} is no device") from error
    if device.type not in ("cpu", "cuda"):
        raise InvalidOption("device", f"must be cpu or cuda, got {name!r}")
    if device.type == "cuda":
        count = torch.cuda.device_count()
        device = torch.device("cuda", rank if device.index is None else device.index)
        if device.index >= count:
            raise InvalidOption("device", f"{device} is not there: torch sees {count} CUDA devices")
        check_architecture(device)
        torch.cuda.set_device(device)
    return device


def pick_dtype(name: str, device: torch.device, model_config: Mapping[str, Any]) -> torch.dtype:
    """The dtype meant by "auto" or a name.

    "auto" is float32 on a CPU (half formats are slow on most), and on a GPU the checkpoint's own half format,
    bfloat16 where it has none.

    Raises:
        InvalidOption: Not a dtype that is supported.
    """
    if name != "auto":
        if name not in _DTYPES:
            raise InvalidOption("dtype", f"must be auto, {', '.join(_DTYPES)}, got {name!r}")
        return _DTYPES[name]
    if device.type == "cpu":
        return torch.float32
    stated = str(model_config.get("dtype") or model_config.get("torch_dtype") or "").removeprefix("torch.")
    return torch.float16 if stated == "float16" else torch.bfloat16


def pick_graphs(name: str, device: torch.device) -> str | None:
    """How decode steps are captured: "auto", "piecewise" or "full"; None: not at all.

    Raises:
        InvalidOption: No such way, or "piecewise" or "full" without a CUDA device.
    """
    if name not in ("auto", "none", "piecewise", "full"):
        raise InvalidOption("graphs", f"must be auto, none, piecewise or full, got {name!r}")
    if name in ("piecewise", "full") and device.type != "cuda":
        raise InvalidOption("graphs", f"{name} needs a CUDA device, got {device.type}")
    return name if name != "none" and device.type == "cuda" else None
