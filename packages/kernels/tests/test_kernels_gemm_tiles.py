"""The choice of tiles for products of many tokens, on the CPU."""

from __future__ import annotations

import pytest
from llm_kernels.cuda import gemm_tiles
from llm_kernels.cuda.gemm_tiles import SIZES, UNSPLIT_GATED, Tiles, candidates, estimate_us, measured

MEASURED = gemm_tiles._MEASURED
ENTRIES = [(key, most, tiles) for key, entries in MEASURED.items() for most, tiles in entries]


@pytest.mark.parametrize(("key", "most", "tiles"), [e for e in ENTRIES if e[2] is not None])
def test_measured_tiles_are_ones_that_a_kernel_takes(
    key: tuple[int, int, bool], most: int, tiles: Tiles
) -> None:
    out_size, in_size, gated = key
    size = (tiles.groups, tiles.blocks, tiles.tokens)
    assert size in SIZES
    assert tiles.pair in (1, 2)
    assert 1 <= tiles.split * tiles.pair <= 8
    assert out_size % (16 if gated else 8) == 0
    assert in_size % 8 == 0
    assert not gated or (tiles.groups > 1 and (tiles.split == 1 or size != UNSPLIT_GATED))
    assert measured(most, out_size, in_size, gated) == tiles


@pytest.mark.parametrize("key", MEASURED)
def test_measured_tokens_rise_and_end(key: tuple[int, int, bool]) -> None:
    most = [entry[0] for entry in MEASURED[key]]
    assert most == sorted(set(most))
    assert measured(most[-1] + 1, *key) is None


def test_sizes_that_were_not_measured_stay_with_cublas() -> None:
    assert all(measured(tokens, 1000, 1000, False) is None for tokens in (1, 64, 256, 8192))


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("tokens", [1, 64, 100, 256, 8192])
def test_candidates_are_taken_by_a_kernel_and_waste_little(tokens: int, gated: bool) -> None:
    found = list(candidates(tokens, 1024, gated))
    assert found
    for tiles in found:
        size = (tiles.groups, tiles.blocks, tiles.tokens)
        assert size in SIZES
        assert tiles.split * tiles.pair <= 8
        assert 1024 // (64 * tiles.split) >= 2 or tiles.split == 1
        assert not (gated and (tiles.groups == 1 or (tiles.split > 1 and size == UNSPLIT_GATED)))
        assert tiles.tokens == 64 or -(-tokens // tiles.tokens) * tiles.tokens <= 1.5 * tokens


def test_the_estimate_is_no_less_than_reading_the_weights_or_multiplying() -> None:
    for tokens in (64, 256, 8192):
        for tiles in candidates(tokens, 4096, False):
            estimate = estimate_us(tiles, tokens, 4096, 4096)
            assert estimate > 4096 * 4096 * 2 / 4.27e6
            assert estimate > tokens * 4096 * 4096 / (132 * 2048 * 1700)


def test_the_estimate_prefers_whole_rounds_of_blocks() -> None:
    def us(rows: int) -> float:
        return estimate_us(Tiles(2, 1, 256), 256, 128 * rows, 4096)

    assert us(132) == pytest.approx(us(131), rel=0.01)
    assert us(133) > 1.4 * us(132)
