"""Owns decoding the GGUF number formats to float32, vectorised over blocks; knows nothing about files.

Each format packs a fixed number of values into a block of bytes, most with a float16 scale and minimum. A
block of the K formats holds 256 values in sub-blocks with small integer scales of their own.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class QuantFormat:
    """A number format: `block_bytes` bytes decode to `block_values` floats.

    `decode` maps uint8 [blocks, block_bytes] to float32 [blocks, block_values].
    """

    name: str
    block_values: int
    block_bytes: int
    decode: Callable[[Bytes], Floats]


def _half(block: Bytes, start: int) -> Floats:
    """The float16 at byte `start` of every block, as float32 [blocks, 1]."""
    return np.ascontiguousarray(block[:, start : start + 2]).view(np.float16).astype(np.float32)


def _nibbles(packed: Bytes) -> Bytes:
    """Low halves of all bytes, then their high halves, along the last dimension."""
    return np.concatenate((packed & 0x0F, packed >> 4), axis=-1)


def _fifth_bits(block: Bytes, start: int) -> Bytes:
    """The 32 bits from byte `start` on, each moved to bit 4: [blocks, 32]."""
    bits = np.unpackbits(block[:, start : start + 4], axis=-1, bitorder="little")
    return np.left_shift(bits, 4, dtype=np.uint8)


def _f32(block: Bytes) -> Floats:
    return np.ascontiguousarray(block).view(np.float32)


def _f16(block: Bytes) -> Floats:
    return np.ascontiguousarray(block).view(np.float16).astype(np.float32)


def _bf16(block: Bytes) -> Floats:
    # bfloat16 is the upper half of a float32.
    return (np.ascontiguousarray(block).view(np.uint16).astype(np.uint32) << 16).view(np.float32)


def _q4_0(block: Bytes) -> Floats:
    values = _nibbles(block[:, 2:18]).astype(np.float32) - np.float32(8)
    return _half(block, 0) * values


def _q4_1(block: Bytes) -> Floats:
    return _half(block, 0) * _nibbles(block[:, 4:20]).astype(np.float32) + _half(block, 2)


def _q5_0(block: Bytes) -> Floats:
    values = (_nibbles(block[:, 6:22]) | _fifth_bits(block, 2)).astype(np.float32) - np.float32(16)
    return _half(block, 0) * values


def _q5_1(block: Bytes) -> Floats:
    values = (_nibbles(block[:, 8:24]) | _fifth_bits(block, 4)).astype(np.float32)
    return _half(block, 0) * values + _half(block, 2)


def _q8_0(block: Bytes) -> Floats:
    return _half(block, 0) * block[:, 2:34].view(np.int8).astype(np.float32)


def _k_scales(packed: Bytes) -> tuple[Bytes, Bytes]:
    """The 8 scales and 8 minimums of Q4_K and Q5_K, 6 bits each: [blocks, 12] -> two of [blocks, 8]."""
    first, second, third = packed[:, 0:4], packed[:, 4:8], packed[:, 8:12]
    # The first four of each are plain; the upper 2 bits of the last four ride on top of the first two groups.
    scales = np.concatenate((first & 63, (third & 15) | ((first >> 6) << 4)), axis=-1)
    minimums = np.concatenate((second & 63, (third >> 4) | ((second >> 6) << 4)), axis=-1)
    return scales, minimums


def _k_values(block: Bytes, start: int) -> Bytes:
    """The 4-bit values of 8 sub-blocks of 32: each 32 bytes hold one sub-block low and the next high."""
    return _nibbles(block[:, start : start + 128].reshape(-1, 4, 32)).reshape(-1, 8, 32)


def _scaled_k(block: Bytes, values: Bytes) -> Floats:
    scales, minimums = _k_scales(block[:, 4:16])
    scale = (_half(block, 0) * scales.astype(np.float32))[:, :, None]
    minimum = (_half(block, 2) * minimums.astype(np.float32))[:, :, None]
    result: Floats = (scale * values.astype(np.float32) - minimum).reshape(-1, 256)
    return result


def _q4_k(block: Bytes) -> Floats:
    return _scaled_k(block, _k_values(block, 16))


def _q5_k(block: Bytes) -> Floats:
    # Bit s of byte i is the fifth bit of value i of sub-block s.
    shifts = np.arange(8, dtype=np.uint8)[None, :, None]
    fifth = np.left_shift((block[:, None, 16:48] >> shifts) & 1, 4, dtype=np.uint8)
    return _scaled_k(block, _k_values(block, 48) | fifth)


def _q6_k(block: Bytes) -> Floats:
    # Two halves of 128 values: 64 bytes of low nibbles, 32 bytes with four pairs of high bits each.
    low = _nibbles(block[:, 0:128].reshape(-1, 2, 64)).reshape(-1, 2, 4, 32)
    shifts = np.array([0, 2, 4, 6], dtype=np.uint8)[None, None, :, None]
    high = (block[:, 128:192].reshape(-1, 2, 1, 32) >> shifts) & 3
    values = (low | (high << 4)).reshape(-1, 16, 16).astype(np.float32) - np.float32(32)
    scale = _half(block, 208) * block[:, 192:208].view(np.int8).astype(np.float32)
    result: Floats = (scale[:, :, None] * values).reshape(-1, 256)
    return result


# Keyed by the type number in a GGUF file.
FORMATS: Mapping[int, QuantFormat] = {
    0: QuantFormat("F32", 1, 4, _f32),
    1: QuantFormat("F16", 1, 2, _f16),
    2: QuantFormat("Q4_0", 32, 18, _q4_0),
    3: QuantFormat("Q4_1", 32, 20, _q4_1),
    6: QuantFormat("Q5_0", 32, 22, _q5_0),
    7: QuantFormat("Q5_1", 32, 24, _q5_1),
    8: QuantFormat("Q8_0", 32, 34, _q8_0),
    12: QuantFormat("Q4_K", 256, 144, _q4_k),
    13: QuantFormat("Q5_K", 256, 176, _q5_k),
    14: QuantFormat("Q6_K", 256, 210, _q6_k),
    30: QuantFormat("BF16", 1, 2, _bf16),
}

# Formats that exist but are not decoded here; for messages only.
OTHER_NAMES: Mapping[int, str] = {
    9: "Q8_1",
    10: "Q2_K",
    11: "Q3_K",
    15: "Q8_K",
    16: "IQ2_XXS",
    17: "IQ2_XS",
    18: "IQ3_XXS",
    19: "IQ1_S",
    20: "IQ4_NL",
    21: "IQ3_S",
    22: "IQ2_S",
    23: "IQ4_XS",
    29: "IQ1_M",
    34: "TQ1_0",
    35: "TQ2_0",
    39: "MXFP4",
}
