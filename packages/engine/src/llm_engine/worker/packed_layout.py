"""Where named arrays lie in one buffer that goes to the device in one copy; knows nothing of their use."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

# Triton compiles a kernel anew where a pointer's alignment to 16 bytes changes.
_ALIGNMENT = 16
_TORCH = {"int64": torch.int64, "int32": torch.int32, "float32": torch.float32}

Shape: TypeAlias = tuple[int, ...]


class _Field(NamedTuple):
    start: int
    num_bytes: int
    dtype: str
    shape: Shape


class PackedLayout:
    """The places of arrays, one after the other.

    Args:
        arrays: Of each name the dtype ("int64", "int32" or "float32") and the shape.

    Attributes:
        num_bytes: Length of the buffer.
    """

    def __init__(self, arrays: Mapping[str, tuple[str, Shape]]) -> None:
        self._fields: dict[str, _Field] = {}
        self.num_bytes = 0
        for name, (dtype, shape) in arrays.items():
            num_bytes = math.prod(shape) * np.dtype(dtype).itemsize
            self._fields[name] = _Field(self.num_bytes, num_bytes, dtype, shape)
            self.num_bytes += -(-num_bytes // _ALIGNMENT) * _ALIGNMENT

    def on_host(self, buffer: NDArray[np.uint8]) -> dict[str, NDArray[np.generic]]:
        """Views of the beginning of a buffer of uint8."""
        return {
            name: buffer[field.start : field.start + field.num_bytes].view(field.dtype).reshape(field.shape)
            for name, field in self._fields.items()
        }

    def on_device(self, buffer: Tensor) -> dict[str, Tensor]:
        """Views of the beginning of a buffer of uint8."""
        return {
            name: buffer[field.start : field.start + field.num_bytes]
            .view(_TORCH[field.dtype])
            .view(field.shape)
            for name, field in self._fields.items()
        }
