"""Owns files mapped into memory and telling which bytes of a file a view is; knows nothing about formats."""

import math
import mmap
from pathlib import Path

import torch
from torch import Tensor

# Private and writable only because tensors over read-only memory warn; nothing is ever written. Without
# NORESERVE the kernel would count every file against the memory, and refuse those larger than it.
_FLAGS = getattr(mmap, "MAP_PRIVATE", 2) | getattr(mmap, "MAP_NORESERVE", 0)


class MappedFile:
    """A file that is not empty, open and mapped. Mapped pages are read when they are touched.

    Attributes:
        path: The file.
        size: In bytes.
        data: The mapping, not to be written to.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        # Kept open for reads beside the mapping; closed when this object goes.
        self._stream = path.open("rb", buffering=0)
        self.size = path.stat().st_size
        self.data = mmap.mmap(
            self._stream.fileno(), self.size, flags=_FLAGS, prot=mmap.PROT_READ | mmap.PROT_WRITE
        )
        self._bytes = torch.frombuffer(self.data, dtype=torch.uint8)

    @property
    def descriptor(self) -> int:
        """The open file's number, for reads at an offset."""
        return self._stream.fileno()

    def tensor(self, dtype: torch.dtype, shape: tuple[int, ...], start: int) -> Tensor:
        """The tensor whose little-endian numbers begin at byte `start`; a view, not to be written to."""
        count = math.prod(shape)
        if count == 0:
            return torch.empty(shape, dtype=dtype)
        return torch.frombuffer(self.data, dtype=dtype, count=count, offset=start).view(shape)

    def offset(self, view: Tensor) -> int | None:
        """The byte of this file at which `view` begins, or None when it does not lie in the mapping."""
        if view.device.type != "cpu":
            return None
        offset = view.data_ptr() - self._bytes.data_ptr()
        return offset if 0 <= offset < self.size else None
