"""How values become JSON and come back; knows nothing of which values a record holds.

``encode`` and ``decode`` bring a value back as it was. ``plain`` is for what is only compared, and shorter.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeAlias
from zlib import crc32

import numpy as np

from llm_scheduler.plan import NewRow, Ragged
from llm_scheduler.recording.errors import Unrecordable
from llm_scheduler.request import EncoderItem

Json: TypeAlias = Any
"""What ``json`` writes and reads: None, bool, int, float, str, lists and string-keyed dicts of those."""
Decoded: TypeAlias = Any
"""Whatever was encoded: only who encoded it knows its type."""

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

_DATA: Mapping[str, type] = MappingProxyType({cls.__name__: cls for cls in (EncoderItem, Ragged)})
_PLAIN_TYPES = (str, int, float, bool, type(None))


def encode(value: object) -> Json:
    """Return a value as JSON that ``decode`` turns back.

    Raises:
        Unrecordable: Its type has no form here.
    """
    if isinstance(value, _PLAIN_TYPES):
        return value
    if isinstance(value, np.generic):
        return encode(value.item())
    if isinstance(value, np.ndarray):
        return {"array": [str(value.dtype), value.tolist()]}
    if isinstance(value, bytes):
        return {"bytes": value.hex()}
    if isinstance(value, list):
        return [encode(part) for part in value]
    if isinstance(value, tuple):
        return {"tuple": [encode(part) for part in value]}
    if isinstance(value, set | frozenset):
        return {"set": sorted((encode(part) for part in value), key=repr)}
    if isinstance(value, Mapping):
        return {"map": [[encode(key), encode(part)] for key, part in value.items()]}
    if is_dataclass(value) and not isinstance(value, type) and type(value).__name__ in _DATA:
        return {"data": [type(value).__name__, encode_fields(value)]}
    raise Unrecordable(f"a {type(value).__name__} has no form in a record")


def encode_fields(value: DataclassInstance) -> dict[str, Json]:
    """Return a dataclass's fields that differ from their defaults."""
    entries = {}
    for field in fields(value):
        found = getattr(value, field.name)
        if not is_default(field, found):
            entries[field.name] = encode(found)
    return entries


def is_default(field: Field[object], value: object) -> bool:
    """Tell whether a field has the value that it has when it is not given."""
    default = field.default_factory() if field.default_factory is not MISSING else field.default
    return default is not MISSING and type(value) is type(default) and bool(value == default)


def decode(value: Json) -> Decoded:
    """Return the value that ``encode`` was given; frozensets, tuples and arrays included.

    Raises:
        ValueError, TypeError, KeyError: It is none that ``encode`` makes.
    """
    if isinstance(value, list):
        return [decode(part) for part in value]
    if not isinstance(value, dict):
        return value
    ((kind, content),) = value.items()
    return _DECODERS[kind](content)


def plain(value: object) -> Json:
    """Return a value as JSON to compare: arrays become lists, and dataclasses lose empty fields.

    A ``NewRow`` shows its tokens as a count and a checksum; its payload is opaque and left out.
    """
    if isinstance(value, np.ndarray):
        return value.astype(int).tolist() if value.dtype == np.bool_ else value.tolist()
    if isinstance(value, Ragged):
        return [value.values.tolist(), np.diff(value.offsets).tolist()]
    if isinstance(value, list | tuple):
        return [plain(part) for part in value]
    if isinstance(value, Mapping):
        return [[plain(key), plain(part)] for key, part in value.items()]
    if is_dataclass(value):
        parts = {field.name: getattr(value, field.name) for field in fields(value)}
        if isinstance(value, NewRow):
            tokens = np.ascontiguousarray(parts.pop("token_ids"), np.int32)
            parts.pop("payload")
            parts["tokens"] = [len(tokens), crc32(tokens.tobytes())]
        shown = {name: plain(part) for name, part in parts.items()}
        return {name: part for name, part in shown.items() if part not in (None, [])}
    return encode(value)


def _decode_array(content: Json) -> object:
    dtype, values = content
    return np.array(values, dtype)


def _decode_data(content: Json) -> object:
    name, entries = content
    return _DATA[name](**{key: decode(part) for key, part in entries.items()})


def _parts(content: Json) -> list[object]:
    if not isinstance(content, list):
        raise TypeError("expected a list")
    return [decode(part) for part in content]


_DECODERS: Mapping[str, Callable[[Json], object]] = MappingProxyType(
    {
        "array": _decode_array,
        "bytes": lambda content: bytes.fromhex(str(content)),
        "tuple": lambda content: tuple(_parts(content)),
        "set": lambda content: frozenset(_parts(content)),
        "map": lambda content: {decode(key): decode(part) for key, part in content},
        "data": _decode_data,
    }
)
