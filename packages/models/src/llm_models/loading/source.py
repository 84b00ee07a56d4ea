"""Owns what every weight file format offers to the loader; knows nothing about a format or about models."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from torch import Tensor


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """What a file's header says about a tensor. `dtype` is the format's own name."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    file: Path


class TensorSource(Protocol):
    """Named tensors in files. The names are those of the checkpoint that the spec describes."""

    @property
    def root(self) -> Path:
        """The file or folder, for messages about tensors that no file holds."""
        ...

    @property
    def tensors(self) -> Mapping[str, TensorInfo]:
        """Every tensor of the files, by name, known without reading weights."""
        ...

    def read(self, name: str) -> Tensor:
        """Tensor `name` on the CPU, whole, in its stored dtype (packed formats: decoded to float32).

        Where the format allows it (safetensors, pickles, plain numbers in GGUF) the tensor lies in the mapped
        file: views and row slices of it read from the disk only what they touch. Do not write to it. May be
        called from several threads at once.

        Raises:
            WeightError: The tensor cannot be read.
        """
        ...

    def copy_into(self, name: str, out: Tensor) -> None:
        """Writes tensor `name` into `out` (same shape; any float dtype, any device), casting on the way.

        May be called from several threads at once, for different tensors.

        Raises:
            WeightError: The tensor cannot be read.
        """
        ...
