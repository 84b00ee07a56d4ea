"""Owns the safetensors container: the checked header of one file; knows nothing about shards or models."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeGuard

import torch

from llm_models.errors import CorruptFile, DuplicateTensor, WrongDtype

_MAX_HEADER_BYTES = 100_000_000
# The format's name: bits of one number, and the dtype here; None where torch has none.
_DTYPES: Mapping[str, tuple[int, torch.dtype | None]] = MappingProxyType(
    {
        "F64": (64, torch.float64),
        "F32": (32, torch.float32),
        "F16": (16, torch.float16),
        "BF16": (16, torch.bfloat16),
        "F8_E4M3": (8, torch.float8_e4m3fn),
        "F8_E5M2": (8, torch.float8_e5m2),
        "F8_E4M3FNUZ": (8, torch.float8_e4m3fnuz),
        "F8_E5M2FNUZ": (8, torch.float8_e5m2fnuz),
        "F8_E8M0": (8, torch.float8_e8m0fnu),
        "F6_E2M3": (6, None),
        "F6_E3M2": (6, None),
        "F4": (4, None),
        "C64": (64, torch.complex64),
        "I64": (64, torch.int64),
        "I32": (32, torch.int32),
        "I16": (16, torch.int16),
        "I8": (8, torch.int8),
        "U64": (64, torch.uint64),
        "U32": (32, torch.uint32),
        "U16": (16, torch.uint16),
        "U8": (8, torch.uint8),
        "BOOL": (8, torch.bool),
    }
)


@dataclass(frozen=True, slots=True)
class Entry:
    """A tensor's place in the file, in bytes from the file's start."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    end: int

    @property
    def torch_dtype(self) -> torch.dtype | None:
        """The dtype to read it as; None when torch has none."""
        return _DTYPES[self.dtype][1]


def read_header(file: Path) -> Mapping[str, Entry]:
    """Reads and checks a file's header.

    Every byte behind the header belongs to exactly one tensor, as the format demands.

    Raises:
        CorruptFile: It is truncated, no safetensors file, or its header makes no sense.
        DuplicateTensor: The header lists a tensor twice.
        WrongDtype: A tensor has a number format that is not known here.
    """
    size = file.stat().st_size
    header, data = _header(file, size)
    entries = [_entry(file, name, fields, data) for name, fields in header if name != "__metadata__"]
    entries.sort(key=lambda entry: (entry.start, entry.end))
    position = data
    for entry in entries:
        if entry.start != position:
            raise CorruptFile(file, entry.name, f"begins at byte {entry.start}, not {position}")
        position = entry.end
        if position > size:
            raise CorruptFile(
                file, entry.name, f"ends at byte {position}, but the file has only {size} bytes"
            )
    if position != size:
        raise CorruptFile(file, None, f"has {size - position} bytes that belong to no tensor")
    return {entry.name: entry for entry in entries}


def _header(file: Path, size: int) -> tuple[Sequence[tuple[str, Any]], int]:
    """The header's items, and the byte at which the data begins."""
    with file.open("rb") as stream:
        length = int.from_bytes(stream.read(8), "little")
        data = 8 + length
        if size < 8 or length > _MAX_HEADER_BYTES or data > size:
            raise CorruptFile(file, None, f"is truncated or no safetensors file ({size} bytes)")
        text = stream.read(length)
    try:
        # Pairs, not a dict: a tensor listed twice would vanish in one.
        header = json.loads(text, object_pairs_hook=_Pairs)
    except (ValueError, RecursionError) as error:
        raise CorruptFile(file, None, f"has a header that is not valid JSON ({_line(error)})") from error
    if not isinstance(header, _Pairs):
        raise CorruptFile(file, None, "has a header that makes no sense")
    seen: set[str] = set()
    for name, _ in header:
        if name in seen:
            raise DuplicateTensor(file, name, "is listed twice in the file's header")
        seen.add(name)
    return header, data


class _Pairs(list[tuple[str, Any]]):
    """A JSON object as its items."""


def _entry(file: Path, name: str, fields: object, data: int) -> Entry:
    found = dict(fields) if isinstance(fields, _Pairs) else {}
    dtype, shape, offsets = (found.get(key) for key in ("dtype", "shape", "data_offsets"))
    if not (isinstance(dtype, str) and _counts(shape) and _counts(offsets) and len(offsets) == 2):
        raise CorruptFile(file, name, "has a header entry that makes no sense")
    if dtype not in _DTYPES:
        raise WrongDtype(file, name, f"has the unknown dtype {dtype!r}; known are {', '.join(_DTYPES)}")
    begin, end = offsets
    bits = math.prod(shape) * _DTYPES[dtype][0]
    if bits != 8 * (end - begin):
        reason = f"takes {end - begin} bytes, but {dtype} of shape {list(shape)} takes {bits / 8:g}"
        raise CorruptFile(file, name, reason)
    return Entry(name, dtype, tuple(shape), data + begin, data + end)


def _counts(value: object) -> TypeGuard[list[int]]:
    """Whether it is a list of integers from 0 on."""
    return isinstance(value, list) and all(type(item) is int and item >= 0 for item in value)


def _line(error: Exception) -> str:
    return " ".join(str(error).split())
