"""Owns mapping a file into memory and tensors that lie in it; knows nothing about formats."""

import math
import mmap
from pathlib import Path

import torch
from torch import Tensor

# Private and writable only because tensors over read-only memory warn; nothing is ever written. Without
# NORESERVE the kernel would count every file against the memory, and refuse those larger than it.
_FLAGS = getattr(mmap, "MAP_PRIVATE", 2) | getattr(mmap, "MAP_NORESERVE", 0)


def map_file(path: Path) -> mmap.mmap:
    """Maps a whole file that is not empty. Pages are read when they are touched."""
    with path.open("rb") as stream:
        return mmap.mmap(stream.fileno(), 0, flags=_FLAGS, prot=mmap.PROT_READ | mmap.PROT_WRITE)


def mapped_tensor(data: mmap.mmap, dtype: torch.dtype, shape: tuple[int, ...], start: int) -> Tensor:
    """The tensor whose little-endian numbers begin at byte `start`; a view that must not be written to."""
    count = math.prod(shape)
    if count == 0:
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(data, dtype=dtype, count=count, offset=start).view(shape)
