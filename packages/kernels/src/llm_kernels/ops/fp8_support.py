"""Whether this machine's kernels take e4m3 numbers; knows nothing about any op."""

from __future__ import annotations

from functools import cache

import torch


def has_e4m3(_dtype: torch.dtype, _size: int) -> bool:
    """Whether Triton compiles e4m3 for this machine: not for GPUs before capability 8.9."""
    return not torch.cuda.is_available() or _capability() >= (8, 9)


@cache
def _capability() -> tuple[int, int]:
    return torch.cuda.get_device_capability()
