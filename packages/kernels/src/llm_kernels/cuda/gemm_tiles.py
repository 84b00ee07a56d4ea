"""Which tiles a product of many tokens takes: a rough model of an H200. Knows no kernel and needs no GPU."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

_MULTIPROCESSORS = 132
_CYCLES_PER_US = 1700
_WEIGHT_BYTES_PER_US = 4.27e6
# A multiprocessor multiplies 2,048 pairs of bfloat16 a cycle; the L2 cache feeds it about 40 bytes a cycle.
_PAIRS_PER_CYCLE = 2048
_FED_BYTES_PER_CYCLE = 40
_ROOM_OF_CLUSTERS = 120  # multiprocessors that clusters of more than two blocks find together
_COLUMNS = 64  # of I in a step


@dataclass(frozen=True, slots=True)
class Tiles:
    """How a product is cut; the meaning of each number is in csrc/include/llm_kernels/cuda/gemm.h.

    Args:
        groups: Warpgroups that multiply, 1 to 3.
        blocks: Blocks of 64 rows of the weights a warpgroup.
        tokens: Of a tile.
        split: Parts of I, added up within a cluster.
        pair: 2: two tiles of neighbouring rows share what they read of the tokens; else 1.
    """

    groups: int
    blocks: int
    tokens: int
    split: int = 1
    pair: int = 1

    @property
    def rows(self) -> int:
        """Rows of the weights in a tile."""
        return 64 * self.groups * self.blocks


SIZES = (
    (1, 1, 64),
    (2, 1, 64),
    (2, 1, 96),
    (1, 1, 128),
    (2, 1, 128),
    (2, 2, 128),
    (3, 1, 128),
    (2, 1, 160),
    (3, 1, 160),
    (2, 1, 192),
    (3, 1, 192),
    (2, 1, 224),
    (3, 1, 224),
    (2, 1, 256),
    (3, 1, 256),
)
"""Groups, blocks and tokens of the kernels there are; those of one group have no gate."""
UNSPLIT_GATED = (3, 1, 256)
"""The size whose sums, with a gate, do not fit beside each other: no split."""


def candidates(tokens: int, in_size: int, gated: bool) -> Iterator[Tiles]:
    """The tiles worth a thought: at most a third of the tokens of all tiles lie outside."""
    for groups, blocks, size in SIZES:
        if (gated and groups == 1) or (size > 64 and -(-tokens // size) * size > 1.5 * tokens):
            continue
        for split in (1, 2, 3, 4, 5, 6, 8):
            unsplit = gated and (groups, blocks, size) == UNSPLIT_GATED
            if split > 1 and (unsplit or in_size < 2 * split * _COLUMNS):
                continue
            for pair in (1, 2):
                if split * pair <= 8:
                    yield Tiles(groups, blocks, size, split, pair)


def estimate_us(tiles: Tiles, tokens: int, out_size: int, in_size: int) -> float:
    """About how many microseconds a product takes, by what its blocks multiply, read and write in turn."""
    places = -(-out_size // tiles.rows) * -(-tokens // tiles.tokens)
    cluster = tiles.split * tiles.pair
    room = _MULTIPROCESSORS if cluster <= 2 else _ROOM_OF_CLUSTERS
    blocks_at_once = room // cluster * cluster
    multiplied = tiles.rows * tiles.tokens * _COLUMNS / _PAIRS_PER_CYCLE
    fed = (tiles.rows + tiles.tokens / tiles.pair) * 2 * _COLUMNS / _FED_BYTES_PER_CYCLE
    part = -(-in_size // (_COLUMNS * tiles.split)) * max(multiplied, fed)
    sums = tiles.rows * tiles.tokens
    rounds = -(-places * tiles.split // blocks_at_once)
    if tiles.split > 1:
        cycles = rounds * (part + 2500 + sums * 4 / 30)
    else:
        cycles = rounds * (part + sums * 2 / 100) + 2500 + sums * 2 / 60
    multiplying, reading = cycles / _CYCLES_PER_US, out_size * in_size * 2 / _WEIGHT_BYTES_PER_US + 2
    return max(multiplying, reading) + 0.05 * min(multiplying, reading)


def measured(tokens: int, out_size: int, in_size: int, gated: bool) -> Tiles | None:
    """The tiles that were measured to beat cuBLAS by 2 % or more; None where it stays.

    Args:
        tokens: T.
        out_size: Rows of the weights, with a gate those of both halves.
        in_size: I.
        gated: Whether the activation is part of the product.
    """
    for most_tokens, tiles in _MEASURED.get((out_size, in_size, gated), ()):
        if tokens <= most_tokens:
            return tiles
    return None


# By rows of the weights, I and gate: up to how many tokens which tiles, as far as measured. H200, chains in
# CUDA graphs, weights outside the L2 cache: `benchmarks/gpu/linear.py --sweep` (docs/performance.md).
_MEASURED: dict[tuple[int, int, bool], tuple[tuple[int, Tiles | None], ...]] = {
    (24576, 4096, True): (
        (64, None),
        (128, Tiles(3, 1, 128)),
        (160, Tiles(3, 1, 160)),
        (192, Tiles(3, 1, 192)),
        (224, Tiles(3, 1, 224)),
        (256, Tiles(3, 1, 256)),
        (480, None),
        (512, Tiles(3, 1, 256)),
    ),
    (4096, 12288, False): (
        (48, None),
        (64, Tiles(1, 1, 64, split=2)),
        (128, Tiles(3, 1, 128, split=5)),
        (160, Tiles(3, 1, 160, split=5)),
        (192, Tiles(3, 1, 192, split=5)),
        (224, Tiles(3, 1, 224, split=5)),
    ),
    (4096, 4096, False): (
        (64, None),
        (96, Tiles(2, 1, 96, split=3)),
        (128, None),
        (160, Tiles(2, 1, 160, split=3)),
    ),
    # Of more tokens whole rounds of blocks alone: others waste up to a quarter.
    (6144, 4096, False): (
        (960, None),
        (1024, Tiles(3, 1, 256)),
        (1984, None),
        (2048, Tiles(3, 1, 256)),
    ),
    (1024, 2048, False): ((32, None), (64, Tiles(1, 1, 64, split=4))),
    (1024, 3072, False): ((64, None), (128, Tiles(1, 1, 128, split=5))),
}
