"""Moves a step's small host arrays to the device in one copy; knows nothing of what they mean."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

# Triton compiles a kernel anew where a pointer's alignment to 16 bytes changes: no array may shift another.
_ALIGNMENT = 16
_DTYPES = {
    np.dtype(np.int64): torch.int64,
    np.dtype(np.int32): torch.int32,
    np.dtype(np.float32): torch.float32,
}


def upload(arrays: Mapping[str, NDArray[np.generic]], device: torch.device) -> dict[str, Tensor]:
    """Copies arrays to the device, on a GPU packed into one pinned buffer and without waiting.

    Args:
        arrays: One-dimensional, int64, int32 or float32.
        device: Where to.

    Returns:
        A tensor for each name. On a CPU they are copies too, so the caller may reuse its arrays.
    """
    offsets: dict[str, int] = {}
    total = 0
    for name, array in arrays.items():
        offsets[name] = total
        total += -(-array.nbytes // _ALIGNMENT) * _ALIGNMENT
    # torch's pinned allocator hands a buffer out again only when the copies from it are done.
    staging = torch.empty(total, dtype=torch.uint8, pin_memory=device.type == "cuda")
    host = staging.numpy()
    for name, array in arrays.items():
        start = offsets[name]
        host[start : start + array.nbytes] = np.ascontiguousarray(array).view(np.uint8)
    packed = staging.to(device, non_blocking=True)
    return {
        name: packed[offsets[name] : offsets[name] + array.nbytes].view(_DTYPES[array.dtype])
        for name, array in arrays.items()
    }


def download(tensor: Tensor) -> Tensor:
    """Starts a copy to the host; on a GPU it is valid once an event recorded after it has passed."""
    if tensor.device.type == "cpu":
        return tensor
    host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    return host.copy_(tensor, non_blocking=True)
