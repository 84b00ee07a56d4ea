"""Owns reading safetensors checkpoints, whole or in shards, memory mapped; knows nothing about models."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from safetensors import SafetensorError, safe_open
from torch import Tensor

from llm_models.errors import CorruptFile, MissingShard, MissingTensor, WrongDtype
from llm_models.loading.source import TensorInfo

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
_LOADABLE = frozenset({"F64", "F32", "F16", "BF16"})


class _Slice(Protocol):
    def get_shape(self) -> list[int]: ...
    def get_dtype(self) -> str: ...


class _OpenFile(Protocol):
    """What is used of `safetensors.safe_open`, which has no types of its own."""

    def keys(self) -> list[str]: ...
    def get_slice(self, name: str) -> _Slice: ...
    def get_tensor(self, name: str) -> Tensor: ...


class SafetensorsSource:
    """The safetensors files of a model folder: `model.safetensors`, or the shards of its index.

    Raises:
        MissingShard: There are no weights, or a shard that the index names is not there.
        CorruptFile: The index or a file's header makes no sense, or a file is truncated.
        MissingTensor: A shard lacks a tensor that the index places in it.
        WrongDtype: A tensor is not a plain float.
    """

    def __init__(self, folder: Path) -> None:
        self.root = folder
        self._handles: dict[Path, _OpenFile] = {}
        self.tensors: Mapping[str, TensorInfo] = self._read_headers()

    def copy_into(self, name: str, out: Tensor) -> None:
        """Writes tensor `name` into `out`, casting on the way. See `TensorSource`."""
        out.copy_(self.read(name))

    def read(self, name: str) -> Tensor:
        """Tensor `name` in its stored dtype, in the mapped file. See `TensorSource`."""
        file = self.tensors[name].file
        try:
            return self._handles[file].get_tensor(name)
        except SafetensorError as error:
            raise CorruptFile(file, name, f"cannot be read ({error})") from error

    def _read_headers(self) -> dict[str, TensorInfo]:
        tensors: dict[str, TensorInfo] = {}
        for file, promised in _shards(self.root).items():
            handle = self._handles[file] = _open(file)
            names = set(handle.keys())
            for name in sorted(promised - names):
                raise MissingTensor(file, name, "is placed in this file by the index, but is not in it")
            for name in sorted(names):
                if name in tensors:
                    raise CorruptFile(file, name, f"is in {tensors[name].file.name} too")
                part = handle.get_slice(name)
                tensors[name] = TensorInfo(name, tuple(part.get_shape()), part.get_dtype(), file)
                if tensors[name].dtype not in _LOADABLE:
                    reason = (
                        f"has dtype {tensors[name].dtype}; only {', '.join(sorted(_LOADABLE))} can be loaded"
                    )
                    raise WrongDtype(file, name, reason)
        return tensors


def _shards(folder: Path) -> dict[Path, frozenset[str]]:
    """The weight files of a folder, each with the tensors that the index places in it."""
    index = folder / INDEX
    if not index.is_file():
        if not (folder / WEIGHTS).is_file():
            raise MissingShard(folder, None, f"holds neither {WEIGHTS} nor {INDEX}")
        return {folder / WEIGHTS: frozenset()}
    shards: dict[Path, set[str]] = {}
    for tensor, name in _weight_map(index).items():
        if not isinstance(name, str) or name in {"", ".", ".."} or Path(name).name != name:
            raise CorruptFile(index, tensor, f"is placed in {name!r}, which is not a file name")
        shards.setdefault(folder / name, set()).add(tensor)
    for file in shards:
        if not file.is_file():
            raise MissingShard(file, None, f"is named by {INDEX} but is not there")
    return {file: frozenset(tensors) for file, tensors in sorted(shards.items())}


def _weight_map(index: Path) -> Mapping[str, Any]:
    try:
        content = json.loads(index.read_bytes())
    except ValueError as error:
        raise CorruptFile(index, None, f"is not valid JSON ({error})") from error
    weight_map = content.get("weight_map") if isinstance(content, dict) else None
    if not isinstance(weight_map, dict) or not weight_map:
        raise CorruptFile(index, None, "has no weight_map")
    return weight_map


def _open(file: Path) -> _OpenFile:
    try:
        opened: _OpenFile = safe_open(file, framework="pt", device="cpu")
    except SafetensorError as error:
        raise _diagnosed(file, error) from error
    return opened


def _diagnosed(file: Path, error: SafetensorError) -> CorruptFile:
    """Says which tensor is the first beyond the end of a truncated file, else what the library found."""
    size = file.stat().st_size
    with file.open("rb") as stream:
        header_size = int.from_bytes(stream.read(8), "little")
        header_text = stream.read(header_size) if 8 + header_size <= size else b""
    if not header_text:
        return CorruptFile(file, None, f"is truncated or no safetensors file ({size} bytes, {error})")
    try:
        ends = sorted(
            (e["data_offsets"][1], n) for n, e in json.loads(header_text).items() if n != "__metadata__"
        )
    except (ValueError, TypeError, LookupError, AttributeError):
        return CorruptFile(file, None, f"has a header that makes no sense ({error})")
    for end, name in ends:
        if 8 + header_size + end > size:
            return CorruptFile(
                file, name, f"ends at byte {8 + header_size + end}, but the file has only {size} bytes"
            )
    return CorruptFile(file, None, f"cannot be read ({error})")
