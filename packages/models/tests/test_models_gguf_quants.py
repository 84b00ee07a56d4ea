"""Our decoding of every GGUF number format against the reference of the `gguf` package, on random blocks."""

import gguf
import numpy as np
import pytest
from llm_models.loading.gguf_quants import FORMATS

BLOCKS = 257
# Byte offsets of the float16 fields of a block: random bytes there would give NaN and infinity.
HALVES = {
    "Q4_0": (0,), "Q4_1": (0, 2), "Q5_0": (0,), "Q5_1": (0, 2), "Q8_0": (0,),
    "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,),
}  # fmt: skip


def random_blocks(name: str, block_bytes: int, rng: np.random.Generator) -> np.ndarray:
    blocks = rng.integers(0, 256, (BLOCKS, block_bytes), dtype=np.uint8)
    for start in HALVES.get(name, ()):
        values = rng.normal(0, 3, BLOCKS).astype(np.float16)
        blocks[:, start : start + 2] = values.view(np.uint8).reshape(BLOCKS, 2)
    if name in {"F32", "F16", "BF16"}:
        values = rng.normal(0, 3, BLOCKS).astype(np.float16 if name == "F16" else np.float32)
        blocks = values.view(np.uint8).reshape(BLOCKS, -1)[:, -block_bytes:].copy()
    return blocks


@pytest.mark.parametrize("kind", FORMATS, ids=lambda kind: FORMATS[kind].name)
@pytest.mark.parametrize("seed", [0, 1])
def test_decoding_equals_the_reference_to_the_bit(kind, seed):
    chosen = FORMATS[kind]
    blocks = random_blocks(chosen.name, chosen.block_bytes, np.random.default_rng(seed))
    reference = gguf.dequantize(blocks.copy(), gguf.GGMLQuantizationType(kind))
    ours = chosen.decode(blocks)
    assert ours.dtype == np.float32
    assert ours.shape == (BLOCKS, chosen.block_values)
    assert np.isfinite(ours).all()
    np.testing.assert_array_equal(ours.reshape(-1), reference.astype(np.float32).reshape(-1))


@pytest.mark.parametrize("kind", FORMATS, ids=lambda kind: FORMATS[kind].name)
def test_sizes_are_those_of_the_reference(kind):
    values, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType(kind)]
    assert (FORMATS[kind].block_values, FORMATS[kind].block_bytes) == (values, size)
    assert FORMATS[kind].name == gguf.GGMLQuantizationType(kind).name


@pytest.mark.parametrize("kind", FORMATS, ids=lambda kind: FORMATS[kind].name)
def test_strided_blocks_decode_alike(kind):
    chosen = FORMATS[kind]
    blocks = random_blocks(chosen.name, chosen.block_bytes, np.random.default_rng(2))
    wide = np.concatenate((blocks, blocks), axis=1)
    np.testing.assert_array_equal(chosen.decode(wide[:, : chosen.block_bytes]), chosen.decode(blocks))
