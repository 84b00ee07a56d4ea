"""Owns reading pickle checkpoints (`pytorch_model.bin`), only when asked for; knows nothing about models.

PyTorch's restricted unpickler is used: it builds tensors and plain containers, and runs no code of the file.
"""

import pickle
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from llm_models.errors import CorruptFile, PickleRefused
from llm_models.loading.shards import PICKLE, merge_shards, weight_files
from llm_models.loading.source import TensorInfo, check_cast


class PickleSource:
    """The pickle files of a model folder: `pytorch_model.bin`, or the shards of its index.

    Raises:
        MissingShard: There are no weights, or a shard that the index names is not there.
        CorruptFile: The index makes no sense, or a file is truncated or no checkpoint.
        PickleRefused: A file holds something that the restricted unpickler does not build.
        DuplicateTensor: A tensor is in two files, or listed twice.
        MissingTensor: A shard lacks a tensor that the index places in it.
    """

    def __init__(self, folder: Path) -> None:
        self.root = folder
        promised = weight_files(folder, PICKLE)
        held = {file: _load(file) for file in promised}
        homes = merge_shards(promised, {file: frozenset(tensors) for file, tensors in held.items()})
        self._tensors = {name: held[file][name] for name, file in homes.items()}
        self.tensors: Mapping[str, TensorInfo] = {
            name: TensorInfo(
                name,
                tuple(tensor.shape),
                str(tensor.dtype).removeprefix("torch."),
                homes[name],
                tensor.nbytes,
            )
            for name, tensor in self._tensors.items()
        }

    def read(self, name: str) -> Tensor:
        """Tensor `name`, in the mapped file unless that is of the oldest kind. See `TensorSource`."""
        return self._tensors[name]

    def copy_into(self, name: str, out: Tensor) -> None:
        """Writes tensor `name` into `out`. See `TensorSource`."""
        self.copy_view(name, self._tensors[name], out)

    def copy_view(self, name: str, view: Tensor, out: Tensor) -> None:
        """Writes a view of tensor `name` into `out`. See `TensorSource`."""
        check_cast(self.tensors[name], view.dtype, out.dtype)
        out.copy_(view)


def _load(file: Path) -> Mapping[str, Tensor]:
    try:
        content = _unpickled(file)
    except pickle.UnpicklingError as error:
        reason = "holds something else than tensors, which is not read: it could run code"
        raise PickleRefused(file, None, f"{reason} ({_line(error)})") from error
    except (RuntimeError, EOFError, ValueError, OSError, LookupError, TypeError, AttributeError) as error:
        raise CorruptFile(file, None, f"is truncated or no PyTorch checkpoint ({_line(error)})") from error
    if not isinstance(content, dict):
        raise CorruptFile(file, None, f"holds no dictionary of tensors, but {type(content).__name__}")
    for name, tensor in content.items():
        if not isinstance(name, str) or not isinstance(tensor, Tensor):
            raise CorruptFile(file, str(name), f"is no tensor, but {type(tensor).__name__}")
    return content


def _unpickled(file: Path) -> object:
    with file.open("rb") as stream:
        mapped = stream.read(2) == b"PK"  # Files older than PyTorch 1.6 are no zip archives.
    content: object = torch.load(file, map_location="cpu", weights_only=True, mmap=mapped)
    return content


def _line(error: Exception) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
