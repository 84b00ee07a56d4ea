"""Programmatic dependent launch: a kernel that starts while the one before it ends; knows nothing of any op.

A kernel launched with `launch_options` and compiled with its PDL flag calls `let_later_start`, then
`wait_for_earlier` in every program before it reads or writes what an earlier kernel touches. What comes
before the wait (index arithmetic, weights) overlaps the end of the kernel before.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
import triton
import triton.language as tl


@triton.jit  # type: ignore[untyped-decorator]
def let_later_start(PDL: tl.constexpr) -> None:
    """Lets the next kernel of the stream start, up to its own wait; it loses nothing if called early."""
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()


@triton.jit  # type: ignore[untyped-decorator]
def wait_for_earlier(PDL: tl.constexpr) -> None:
    """Waits until all earlier kernels are complete and what they wrote is visible."""
    if PDL:
        tl.extra.cuda.gdc_wait()


def launch_options(device: torch.device) -> dict[str, Any]:
    """Keyword arguments of a launch: the kernel's constexpr PDL, and Triton's option where it is set."""
    if device.type == "cuda" and _can_start_early(device.index or 0):
        return {"PDL": True, "launch_pdl": True}
    return {"PDL": False}


@cache
def _can_start_early(index: int) -> bool:
    # Also a name of ROCm devices: there torch.version.cuda is None.
    return torch.version.cuda is not None and torch.cuda.get_device_capability(index) >= (9, 0)
