"""Owns reading WAV files of plain samples, whole or float; knows nothing about what they are for."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

_WHOLE, _FLOAT, _EXTENSIBLE = 1, 3, 0xFFFE
# By format and bits: how samples are stored, and the size of full scale.
_LAYOUTS = {
    (_WHOLE, 16): ("<i2", 32768.0),
    (_WHOLE, 32): ("<i4", 2147483648.0),
    (_FLOAT, 32): ("<f4", 1.0),
    (_FLOAT, 64): ("<f8", 1.0),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class WavSamples:
    """The samples of a file.

    Attributes:
        samples: float32 [frames, channels], mostly in [-1, 1].
        rate: Frames a second.
    """

    samples: NDArray[np.float32]
    rate: int


def read_wav(path: Path) -> WavSamples:
    """Reads a whole file.

    Raises:
        OSError: It cannot be opened.
        ValueError: It is no WAV file, is cut off, or of another format than whole numbers of 16 or 32 bits
            and floats of 32 or 64.
    """
    content = path.read_bytes()
    if content[:4] != b"RIFF" or content[8:12] != b"WAVE":
        raise ValueError("it does not begin as one")
    chunks = dict(_chunks(content))
    if len(chunks.get(b"fmt ", b"")) < 16 or b"data" not in chunks:
        raise ValueError("it has no format or no data")
    kind, channels, rate, _, frame_bytes, bits = struct.unpack_from("<HHIIHH", chunks[b"fmt "])
    if kind == _EXTENSIBLE and len(chunks[b"fmt "]) >= 26:
        (kind,) = struct.unpack_from("<H", chunks[b"fmt "], 24)
    if (kind, bits) not in _LAYOUTS or channels < 1 or frame_bytes * 8 != channels * bits:
        raise ValueError(f"its samples are of format {kind} with {bits} bits")
    layout, full_scale = _LAYOUTS[kind, bits]
    data = chunks[b"data"]
    whole = len(data) // frame_bytes * frame_bytes
    samples = np.frombuffer(data[:whole], dtype=layout).reshape(-1, channels)
    return WavSamples(samples=(samples / full_scale).astype(np.float32), rate=rate)


def _chunks(content: bytes) -> Iterator[tuple[bytes, bytes]]:
    start = 12
    while start + 8 <= len(content):
        name, size = struct.unpack_from("<4sI", content, start)
        # Writers to a pipe do not know the size of the data and write the largest number.
        is_open_end = name == b"data" and size == 0xFFFFFFFF
        if start + 8 + size > len(content) and not is_open_end:
            raise ValueError("it is cut off")
        yield name, content[start + 8 : start + 8 + size]
        start += 8 + size + size % 2
