"""The default codec: plain data and numpy arrays as MessagePack; knows nothing of plans. No pickle."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np

from llm_distributed.errors import CodecError

_ARRAY = 1


class MsgpackCodec:
    """Encodes None, bool, int, float, str, bytes, lists, tuples (as lists), dicts and arrays of numbers."""

    def __init__(self) -> None:
        self._encoder = msgspec.msgpack.Encoder(enc_hook=_encode_array)
        self._decoder = msgspec.msgpack.Decoder(ext_hook=_decode_array)

    def encode(self, value: Any) -> list[bytes]:  # noqa: ANN401  (any plain value)
        """Encodes a value into one frame; raises `CodecError` for other types."""
        try:
            return [self._encoder.encode(value)]
        except (TypeError, msgspec.MsgspecError, OverflowError) as error:
            raise CodecError(f"cannot encode {type(value).__name__}: {error}") from error

    def decode(self, frames: Sequence[memoryview]) -> Any:  # noqa: ANN401
        """Decodes what `encode` made; raises `CodecError` for anything else."""
        try:
            return self._decoder.decode(frames[0])
        except (IndexError, ValueError, TypeError, msgspec.MsgspecError) as error:
            raise CodecError(f"cannot decode a message: {error}") from error


def _encode_array(value: Any) -> msgspec.msgpack.Ext:  # noqa: ANN401
    if isinstance(value, np.ndarray) and value.dtype.kind in "biuf":
        header = msgspec.msgpack.encode((value.dtype.str, value.shape))
        return msgspec.msgpack.Ext(_ARRAY, bytes([len(header)]) + header + value.tobytes())
    if isinstance(value, np.generic) and value.dtype.kind in "biuf":
        raise TypeError(f"numpy scalar {value!r}: convert it to a Python number")
    raise TypeError(f"{type(value).__name__} is neither plain data nor a numpy array of numbers")


def _decode_array(code: int, data: memoryview) -> Any:  # noqa: ANN401
    if code != _ARRAY:
        raise ValueError(f"unknown extension type {code}")
    start = 1 + data[0]
    dtype, shape = msgspec.msgpack.decode(data[1:start])
    if np.dtype(dtype).kind not in "biuf":
        raise ValueError(f"array of unsupported type {dtype}")
    return np.frombuffer(data[start:], dtype=dtype).reshape(shape)
