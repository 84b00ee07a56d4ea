"""Owns reading safetensors checkpoints, whole or in shards, memory mapped; knows nothing about models."""

from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from llm_models.errors import CorruptFile, WrongDtype
from llm_models.loading.mapped_files import MappedFile
from llm_models.loading.safetensors_header import Entry, read_header
from llm_models.loading.shards import SAFETENSORS, merge_shards, weight_files
from llm_models.loading.source import TensorInfo, check_cast
from llm_models.loading.transfer import Transfer


class SafetensorsSource:
    """The safetensors files of a model folder: `model.safetensors`, or the shards of its index.

    Raises:
        MissingShard: There are no weights, or a shard that the index names is not there.
        CorruptFile: The index or a file's header makes no sense, or a file is truncated.
        DuplicateTensor: A tensor is in two files, or listed twice.
        MissingTensor: A shard lacks a tensor that the index places in it.
        WrongDtype: A tensor has an unknown number format.
    """

    def __init__(self, folder: Path, *, transfer: Transfer | None = None) -> None:
        self.root = folder
        self._transfer = transfer or Transfer()
        promised = weight_files(folder, SAFETENSORS)
        headers = {file: read_header(file) for file in promised}
        homes = merge_shards(promised, {file: frozenset(header) for file, header in headers.items()})
        self._files = {file: MappedFile(file) for file in promised}
        self._entries: Mapping[str, Entry] = {name: headers[file][name] for name, file in homes.items()}
        self.tensors: Mapping[str, TensorInfo] = {
            name: TensorInfo(name, entry.shape, entry.dtype, homes[name], entry.end - entry.start)
            for name, entry in self._entries.items()
        }

    def read(self, name: str) -> Tensor:
        """Tensor `name` in its stored dtype, in the mapped file. See `TensorSource`."""
        entry, file = self._entries[name], self.tensors[name].file
        if entry.torch_dtype is None:
            raise WrongDtype(file, name, f"has dtype {entry.dtype}, which PyTorch cannot hold")
        return self._files[file].tensor(entry.torch_dtype, entry.shape, entry.start)

    def copy_into(self, name: str, out: Tensor) -> None:
        """Writes tensor `name` into `out`, casting on the way. See `TensorSource`."""
        self.copy_view(name, self.read(name), out)

    def copy_view(self, name: str, view: Tensor, out: Tensor) -> None:
        """Writes a view of tensor `name` into `out`. See `TensorSource`."""
        info = self.tensors[name]
        check_cast(info, view.dtype, out.dtype)
        try:
            self._transfer.copy(self._files[info.file], view, out)
        except OSError as error:
            raise CorruptFile(info.file, name, f"cannot be read ({error})") from error
