"""Owns the checking of ids that come from a caller; knows nothing of vocabularies."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from llm_tokenizer.errors import InvalidArgument

_INT32 = np.iinfo(np.int32)
_INT32_TYPE = np.dtype(np.int32)


def int32_array(field: str, values: ArrayLike) -> NDArray[np.int32]:
    """One-dimensional integers as int32, without a copy where they are that already.

    Args:
        field: The argument's name, for the error.
        values: Integers in any array or sequence.

    Raises:
        InvalidArgument: Not one-dimensional, not integers, or out of the range of int32.
    """
    if (
        type(values) is np.ndarray
        and values.dtype == _INT32_TYPE
        and values.ndim == 1
        and values.flags.aligned
    ):
        return values  # the usual case, once a step
    try:
        array = np.asarray(values)
    except (ValueError, OverflowError, TypeError, RuntimeError) as error:
        raise InvalidArgument(field, f"must be a one-dimensional sequence of integers ({error})") from error
    if array.ndim != 1:
        raise InvalidArgument(field, f"must be one-dimensional, has {array.ndim} dimensions")
    if array.dtype == _INT32_TYPE and array.flags.aligned:
        return array
    if array.size == 0:
        return np.empty(0, dtype=np.int32)
    if array.dtype.kind not in "iu":
        raise InvalidArgument(field, f"must hold integers, holds {array.dtype}")
    if int(array.min()) < _INT32.min or int(array.max()) > _INT32.max:
        raise InvalidArgument(field, f"holds a number outside int32: {array.min()} to {array.max()}")
    return array.astype(np.int32)


def token_id_list(field: str, values: ArrayLike | Sequence[int]) -> list[int]:
    """Token ids as a list of integers that are not negative.

    Raises:
        InvalidArgument: As `int32_array`, or one is negative.
    """
    array = int32_array(field, values)
    if array.size and int(array.min()) < 0:
        raise InvalidArgument(field, f"token ids must not be negative, {array.min()} is")
    ids: list[int] = array.tolist()
    return ids
