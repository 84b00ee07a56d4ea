"""Moves a step's small host arrays to the device in one copy; knows nothing of what they mean."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

# Triton compiles a kernel anew where a pointer's alignment to 16 bytes changes: no array may shift another.
_ALIGNMENT = 16
# The engine keeps two steps on their way; a buffer of theirs comes round when both are long done.
_RING_SIZE = 4
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


class PinnedRing:
    """Host buffers that are sent in turns, so that one is filled while the copy from another may wait.

    With at most two steps on their way, a buffer comes round only when its copy is done.

    Args:
        num_bytes: Size of each buffer.
        device: Where they are sent to; for a GPU they are pinned.

    Attributes:
        arrays: The buffers as uint8.
    """

    def __init__(self, num_bytes: int, device: torch.device) -> None:
        pinned = device.type == "cuda"
        self._buffers = [
            torch.zeros(num_bytes, dtype=torch.uint8, pin_memory=pinned) for _ in range(_RING_SIZE)
        ]
        self.arrays = [buffer.numpy() for buffer in self._buffers]
        self._beginnings: dict[tuple[int, int], Tensor] = {}
        self._index = 0

    def advance(self) -> int:
        """Goes to the next buffer and returns its number."""
        self._index = (self._index + 1) % _RING_SIZE
        return self._index

    def send(self, target: Tensor) -> None:
        """Starts the copy of the current buffer's beginning to a uint8 tensor on the device."""
        key = self._index, target.numel()
        if key not in self._beginnings:
            self._beginnings[key] = self._buffers[self._index][: target.numel()]
        target.copy_(self._beginnings[key], non_blocking=True)


class TokenRing:
    """Host buffers for the tokens of steps, and the events that say when they are there, in turns.

    Args:
        max_rows: Most tokens of a step.
        device: Where they come from.
    """

    def __init__(self, max_rows: int, device: torch.device) -> None:
        self._device = device
        pinned = device.type == "cuda"
        self._buffers = [
            torch.zeros(max_rows, dtype=torch.int32, pin_memory=pinned) for _ in range(_RING_SIZE)
        ]
        # Only on a GPU: elsewhere all is done when it returns.
        self._events = [torch.cuda.Event() for _ in range(_RING_SIZE)] if pinned else []  # type: ignore[no-untyped-call]
        self._beginnings: dict[tuple[int, int], Tensor] = {}
        self._index = self._marked = 0

    def fetch(self, tokens: Tensor) -> Tensor:
        """Starts the copy of tokens, int32; valid once the next `mark` has passed."""
        self._index = (self._index + 1) % _RING_SIZE
        key = self._index, tokens.numel()
        if key not in self._beginnings:
            self._beginnings[key] = self._buffers[self._index][: tokens.numel()]
        return self._beginnings[key].copy_(tokens, non_blocking=True)

    def mark(self) -> torch.cuda.Event | None:
        """An event behind all that is queued; None where nothing has to be waited for.

        It is taken again for the fourth step after this.
        """
        if not self._events:
            return None
        self._marked = (self._marked + 1) % _RING_SIZE
        event = self._events[self._marked]
        event.record(torch.cuda.current_stream(self._device))
        return event
