"""Owns reading the GGUF container: metadata and raw tensor bytes, memory mapped; knows nothing about models.

Arrays of strings are skipped, not decoded: they hold the vocabulary, and only the tokenizer needs that.
"""

import mmap
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from llm_models.errors import CorruptFile, UnknownQuantization
from llm_models.loading.gguf_quants import FORMATS, OTHER_NAMES, QuantFormat
from llm_models.loading.mapped_files import MappedFile

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_STRING, _ARRAY = 8, 9
# Value types of the metadata, as struct codes (little endian).
_SCALARS: Mapping[int, str] = {
    0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d",
}  # fmt: skip
_DEFAULT_ALIGNMENT = 32
_MAX_DIMENSIONS = 4


@dataclass(frozen=True, slots=True)
class StringArray:
    """Stands for an array of strings in the metadata; only its length is known."""

    length: int


@dataclass(frozen=True, slots=True)
class GGUFTensor:
    """A tensor's place in the file. `shape` is row-major: the file lists the fastest dimension first."""

    name: str
    shape: tuple[int, ...]
    format: QuantFormat
    start: int

    @property
    def row_bytes(self) -> int:
        """Bytes of one row (the last dimension); of one value for a vector."""
        values = self.shape[-1] if len(self.shape) > 1 else 1
        return values // self.format.block_values * self.format.block_bytes

    @property
    def rows(self) -> int:
        """Rows of the tensor, all leading dimensions together; values for a vector."""
        rows = 1
        for size in self.shape[:-1] if len(self.shape) > 1 else self.shape:
            rows *= size
        return rows

    @property
    def end(self) -> int:
        """First byte of the file behind the tensor."""
        return self.start + self.rows * self.row_bytes


class GGUFFile:
    """An open GGUF file.

    Attributes:
        path: The file.
        mapped: The same, mapped.
        metadata: Key to value: numbers, strings, numpy arrays, or `StringArray`.
        tensors: By the file's own names.

    Raises:
        CorruptFile: Wrong magic, unknown version, truncated, or a header that makes no sense.
        UnknownQuantization: A tensor has a type that is not decoded here.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        size = path.stat().st_size
        if size < 24:
            raise CorruptFile(path, None, f"is no GGUF file: it has {size} bytes")
        self.mapped = MappedFile(path)
        cursor = _Cursor(self.mapped.data, path)
        version, tensor_count, key_count = _read_preamble(cursor)
        self.version = version
        self.metadata: Mapping[str, Any] = _read_metadata(cursor, key_count)
        self.tensors: Mapping[str, GGUFTensor] = _read_tensors(cursor, tensor_count, self._alignment())
        for tensor in self.tensors.values():
            if tensor.end > size:
                reason = f"ends at byte {tensor.end}, but the file has only {size} bytes: it is truncated"
                raise CorruptFile(path, tensor.name, reason)

    def raw(self, tensor: GGUFTensor) -> NDArray[np.uint8]:
        """The bytes of a tensor, still packed: uint8 [rows, row_bytes], a view of the file."""
        count = tensor.rows * tensor.row_bytes
        flat = np.frombuffer(self.mapped.data, dtype=np.uint8, count=count, offset=tensor.start)
        return flat.reshape(tensor.rows, tensor.row_bytes)

    def plain(self, tensor: GGUFTensor, dtype: torch.dtype) -> Tensor:
        """A tensor of plain numbers of type `dtype`, a view of the file that must not be written to."""
        return self.mapped.tensor(dtype, tensor.shape, tensor.start)

    def _alignment(self) -> int:
        alignment = self.metadata.get("general.alignment", _DEFAULT_ALIGNMENT)
        if not isinstance(alignment, int) or alignment <= 0:
            raise CorruptFile(self.path, None, f"has general.alignment {alignment!r}")
        return alignment


class _Cursor:
    """Reads values one after the other; running over the end raises `CorruptFile`."""

    def __init__(self, data: mmap.mmap, path: Path) -> None:
        self.path = path
        self.position = 0
        self._data = data
        self._size = len(data)

    def corrupt(self, reason: str) -> CorruptFile:
        return CorruptFile(self.path, None, reason)

    def take(self, count: int) -> bytes:
        start = self.position
        if count > self._size - start:
            raise self.corrupt(f"is truncated inside its header (byte {self._size})")
        self.position = start + count
        return self._data[start : self.position]

    def number(self, code: str) -> float:
        number: float = struct.unpack("<" + code, self.take(struct.calcsize("<" + code)))[0]
        return number

    def integer(self, code: str) -> int:
        return int(self.number(code))

    def string(self) -> str:
        return self.take(self.integer("Q")).decode("utf-8", errors="replace")

    def skip_strings(self, count: int) -> None:
        data, position, size = self._data, self.position, self._size
        unpack = struct.Struct("<Q").unpack_from
        for _ in range(count):
            if position + 8 > size:
                raise self.corrupt(f"is truncated inside its header (byte {size})")
            position += 8 + unpack(data, position)[0]
        if position > size:
            raise self.corrupt(f"is truncated inside its header (byte {size})")
        self.position = position

    def value(self, kind: int) -> object:
        if kind == _STRING:
            return self.string()
        if kind == _ARRAY:
            return self._array()
        if kind not in _SCALARS:
            raise self.corrupt(f"has metadata of the unknown type {kind}")
        return self.number(_SCALARS[kind])

    def _array(self) -> object:
        kind, count = self.integer("I"), self.integer("Q")
        if kind == _STRING:
            self.skip_strings(count)
            return StringArray(count)
        if kind not in _SCALARS:
            raise self.corrupt(f"has a metadata array of the unknown type {kind}")
        dtype = np.dtype(_SCALARS[kind]).newbyteorder("<")
        return np.frombuffer(self.take(count * dtype.itemsize), dtype=dtype)


def _read_preamble(cursor: _Cursor) -> tuple[int, int, int]:
    magic = cursor.take(4)
    if magic != _MAGIC:
        raise cursor.corrupt(f"is no GGUF file: it starts with {magic!r}")
    version = cursor.integer("I")
    if version not in _VERSIONS:
        raise cursor.corrupt(f"has GGUF version {version}; only little-endian versions 2 and 3 can be read")
    return version, cursor.integer("Q"), cursor.integer("Q")


def _read_metadata(cursor: _Cursor, count: int) -> dict[str, Any]:
    metadata = {}
    for _ in range(count):
        key = cursor.string()
        metadata[key] = cursor.value(cursor.integer("I"))
    return metadata


def _read_tensors(cursor: _Cursor, count: int, alignment: int) -> dict[str, GGUFTensor]:
    found = []
    for _ in range(count):
        name, dimensions = cursor.string(), cursor.integer("I")
        if not 1 <= dimensions <= _MAX_DIMENSIONS:
            raise CorruptFile(cursor.path, name, f"has {dimensions} dimensions")
        shape = tuple(cursor.integer("Q") for _ in range(dimensions))[::-1]
        found.append((name, shape, cursor.integer("I"), cursor.integer("Q")))
    data = -(-cursor.position // alignment) * alignment
    tensors = {}
    for name, shape, kind, offset in found:
        if name in tensors:
            raise CorruptFile(cursor.path, name, "is listed twice")
        tensors[name] = GGUFTensor(name, shape, _format(cursor.path, name, shape, kind), data + offset)
    return tensors


def _format(path: Path, name: str, shape: tuple[int, ...], kind: int) -> QuantFormat:
    if kind not in FORMATS:
        label = OTHER_NAMES.get(kind, f"number {kind}")
        known = ", ".join(item.name for item in FORMATS.values())
        raise UnknownQuantization(path, name, f"has the type {label}; only {known} can be decoded")
    chosen = FORMATS[kind]
    if 0 in shape or shape[-1] % chosen.block_values or (len(shape) == 1 and chosen.block_values > 1):
        raise CorruptFile(path, name, f"has shape {list(shape)}, which {chosen.name} cannot hold")
    return chosen
