"""Owns the checks that turn what callers pass into what the native module takes; knows no cache."""

import math
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from llm_kvcache.errors import InvalidArgument

IntArray: TypeAlias = NDArray[np.integer[Any]] | Sequence[int]
"""A one-dimensional integer array or a sequence of integers."""

Keys: TypeAlias = tuple[bytes | None, str | None, list[tuple[int, bytes]]]
"""Salt, adapter and media items, as the native module takes them."""


def integer(field: str, value: object) -> int:
    """Returns `value` as an int of 64 bits.

    Raises:
        InvalidArgument: It is no integer, or too large.
    """
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise InvalidArgument(field, value, "must be an integer")
    number = int(value)
    if not -(2**63) <= number < 2**63:
        raise InvalidArgument(field, number, "does not fit into 64 bits")
    return number


def seconds(field: str, value: object) -> float | None:
    """Returns a number of seconds as a float, None as it is.

    Raises:
        InvalidArgument: It is no finite number.
    """
    if value is None:
        return None
    number = math.nan
    if isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool):
        with suppress(OverflowError):
            number = float(value)
    if not math.isfinite(number):
        raise InvalidArgument(field, value, "must be a finite number of seconds")
    return number


def text(field: str, value: object) -> str:
    """Returns `value`, which UTF-8 can encode.

    Raises:
        InvalidArgument: It is no str, or holds half of a surrogate pair.
    """
    if not isinstance(value, str):
        raise InvalidArgument(field, value, "must be a str")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise InvalidArgument(field, value, "cannot be encoded in UTF-8") from error
    return value


def _checked(field: str, values: object, dtype: type[np.int32 | np.int64]) -> NDArray[Any]:
    try:
        array = np.asarray(values)
    except (ValueError, TypeError, OverflowError) as error:
        raise InvalidArgument(field, values, "must be a one-dimensional array of integers") from error
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        found = f"got {array.dtype} of shape {array.shape}"
        raise InvalidArgument(field, values, f"must be a one-dimensional array of integers, {found}")
    limits = np.iinfo(dtype)
    if array.size:
        for extreme in (int(array.min()), int(array.max())):
            if not limits.min <= extreme <= limits.max:
                raise InvalidArgument(field, extreme, f"does not fit into {dtype.__name__}")
    return array.astype(dtype)


def int32_array(field: str, values: object) -> NDArray[np.int32]:
    """Returns `values` as a contiguous int32 `[n]`, the same object where it is one.

    Raises:
        InvalidArgument: Not one-dimensional, not integers, or out of range.
    """
    if isinstance(values, np.ndarray) and values.dtype == np.int32 and values.ndim == 1:
        return np.ascontiguousarray(values)
    return _checked(field, values, np.int32)


def int64_array(field: str, values: object) -> NDArray[np.int64]:
    """Returns `values` as a contiguous int64 `[n]`, the same object where it is one.

    Raises:
        InvalidArgument: Not one-dimensional, not integers, or out of range.
    """
    if isinstance(values, np.ndarray) and values.dtype == np.int64 and values.ndim == 1:
        return np.ascontiguousarray(values)
    return _checked(field, values, np.int64)


def chain_keys(salt: bytes | None, lora: str | None, media: Sequence[tuple[int, bytes]]) -> Keys:
    """Returns the extra keys of a sequence, types checked.

    Raises:
        InvalidArgument: `salt` is not bytes, `lora` not a str, or `media` not (offset, digest) pairs.
    """
    if salt is not None and not isinstance(salt, bytes):
        raise InvalidArgument("salt", salt, "must be bytes")
    if lora is not None:
        lora = text("lora", lora)
    if not isinstance(media, Sequence):
        raise InvalidArgument("media", media, "must be a sequence of pairs")
    items: list[tuple[int, bytes]] = []
    for item in media:
        if not isinstance(item, tuple) or len(item) != 2 or not isinstance(item[1], bytes):
            raise InvalidArgument("media", item, "must be pairs of an offset and a digest in bytes")
        items.append((integer("media", item[0]), item[1]))
    return salt, lora, items
