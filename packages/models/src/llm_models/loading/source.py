"""Owns what every weight file format offers to the loader; knows nothing about a format or about models."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from llm_models.errors import WrongDtype

_FLOATS = frozenset({torch.float64, torch.float32, torch.float16, torch.bfloat16})


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """What a file's header says about a tensor.

    Attributes:
        name: The checkpoint's name.
        shape: Row-major.
        dtype: The format's own name of the number format.
        file: Where it lies.
        size: Bytes that it takes in the file.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    file: Path
    size: int


class TensorSource(Protocol):
    """Named tensors in files. The names are those of the checkpoint that the spec describes.

    All methods may be called from several threads at once, for different tensors.
    """

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
        file: views and row slices of it read from the disk only what they touch. Do not write to it.

        Raises:
            WeightError: The tensor cannot be read.
        """
        ...

    def copy_into(self, name: str, out: Tensor) -> None:
        """Writes tensor `name` into `out` (same shape, any device), casting between float formats on the way.

        The fast way for whole tensors.

        Raises:
            WeightError: The tensor cannot be read, or is of a number format that `out` cannot take.
        """
        ...

    def copy_view(self, name: str, view: Tensor, out: Tensor) -> None:
        """Writes a view of what `read(name)` returned into `out`, as `copy_into` does for the whole.

        The fast way for row slices and other views: what lies in a mapped file is read in large pieces by
        several threads, not page by page.

        Raises:
            WeightError: See `copy_into`.
        """
        ...


def check_cast(info: TensorInfo, stored: torch.dtype, wanted: torch.dtype) -> None:
    """Allows equal dtypes and casts between plain floats.

    Raises:
        WrongDtype: The cast would take packed or scaled numbers at face value, or integers for floats.
    """
    if stored != wanted and not (stored in _FLOATS and wanted in _FLOATS):
        raise WrongDtype(info.file, info.name, f"has dtype {info.dtype}, which cannot be loaded as {wanted}")
