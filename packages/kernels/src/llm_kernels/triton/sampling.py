"""The draw in three launches over the logits; knows nothing of filters, penalties or requests.

Filters and penalties have already written -inf or changed values; what is left is memory-bound. The logits
are read once for the largest of each tile, in their own dtype, and once more for the noise where anything is
random: hash (seed, position, token id), add the noise, keep the best of a tile. The last launch looks at the
tiles only.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from llm_kernels.reference import sampling as reference

_TILE = 4096

# Triton kernels see module constants only as constexpr objects; unsigned so that products wrap.
_STEP = tl.constexpr(reference.STEP & 0xFFFFFFFF)
_ROUND_1 = tl.constexpr(reference.ROUND_1)
_ROUND_2 = tl.constexpr(reference.ROUND_2 & 0xFFFFFFFF)
_ROUND_3 = tl.constexpr(reference.ROUND_3)
_SPLIT_ADD = tl.constexpr(reference.SPLIT_ADD % 2**64)
_SPLIT_1 = tl.constexpr(reference.SPLIT_1 % 2**64)
_SPLIT_2 = tl.constexpr(reference.SPLIT_2 % 2**64)
_LARGEST_UNIFORM = tl.constexpr(reference.LARGEST_UNIFORM)
_SMALLEST_TEMPERATURE = tl.constexpr(reference.SMALLEST_TEMPERATURE)


@triton.jit  # type: ignore[untyped-decorator]
def _tile_max(
    logits: tl.tensor,
    tile_max: tl.tensor,
    tile_token: tl.tensor,
    vocab: tl.tensor,
    stride: tl.tensor,
    num_tiles: tl.tensor,
    TILE: tl.constexpr,
) -> None:
    """One program per (row, tile): the largest logit, NaN where there is one, and its lowest token id."""
    row = tl.program_id(0).to(tl.int64)
    tile = tl.program_id(1)
    token = tile * TILE + tl.arange(0, TILE)
    inside = token < vocab
    value = tl.load(logits + row * stride + token, mask=inside, other=float("-inf")).to(tl.float32)
    is_nan = value != value
    value = tl.where(is_nan, float("-inf"), value)
    top = tl.max(value, axis=0)
    # Where all is -inf the first token stands for the tile.
    first = tl.min(tl.where((value == top) & inside, token, vocab - 1), axis=0)
    top = tl.where(tl.max(is_nan.to(tl.int32), axis=0) > 0, float("nan"), top)
    tl.store(tile_max + row * num_tiles + tile, top)
    tl.store(tile_token + row * num_tiles + tile, first)


@triton.jit  # type: ignore[untyped-decorator]
def _mix64(x: tl.tensor) -> tl.tensor:
    """A round of the 64-bit hash of `reference.row_keys`."""
    x = (x ^ (x >> 30)) * tl.full((), _SPLIT_1, tl.uint64)
    x = (x ^ (x >> 27)) * tl.full((), _SPLIT_2, tl.uint64)
    return x ^ (x >> 31)


@triton.jit  # type: ignore[untyped-decorator]
def _tile_draw(
    logits: tl.tensor,
    tile_max: tl.tensor,
    temperature: tl.tensor,
    seeds: tl.tensor,
    positions: tl.tensor,
    best_score: tl.tensor,
    best_token: tl.tensor,
    vocab: tl.tensor,
    stride: tl.tensor,
    num_tiles: tl.tensor,
    TILE: tl.constexpr,
    TILES: tl.constexpr,
) -> None:
    """One program per (row, tile): the best score in the tile and its lowest token id; nothing if greedy."""
    row = tl.program_id(0).to(tl.int64)
    tile = tl.program_id(1)
    heat = tl.load(temperature + row)
    if heat > 0:
        tiles = tl.arange(0, TILES)
        maxima = tl.load(tile_max + row * num_tiles + tiles, mask=tiles < num_tiles, other=float("-inf"))
        row_max = tl.max(maxima, axis=0)
        token = tile * TILE + tl.arange(0, TILE)
        inside = token < vocab
        value = tl.load(logits + row * stride + token, mask=inside, other=float("-inf")).to(tl.float32)
        seed = tl.load(seeds + row).to(tl.uint64, bitcast=True)
        position = tl.load(positions + row).to(tl.uint64, bitcast=True)
        keys = _mix64(_mix64(seed + tl.full((), _SPLIT_ADD, tl.uint64)) + position)
        x = token.to(tl.uint32) * tl.full((), _STEP, tl.uint32) + keys.to(tl.uint32)
        x = (x ^ (x >> 16)) * tl.full((), _ROUND_1, tl.uint32)
        x = x ^ (keys >> 32).to(tl.uint32)
        x = (x ^ (x >> 15)) * tl.full((), _ROUND_2, tl.uint32)
        x = (x ^ (x >> 13)) * tl.full((), _ROUND_3, tl.uint32)
        x = x ^ (x >> 16)
        uniform = tl.minimum((x.to(tl.float32) + 0.5) * (1.0 / 4294967296.0), _LARGEST_UNIFORM)
        # log1p(-u) for u below 2^-12 by its series: log(1 - u) would lose the low bits of u. Error below
        # 2^-36 relative.
        small = uniform + uniform * uniform * (0.5 + uniform * (1.0 / 3.0))
        exponential = tl.where(uniform < 0.000244140625, small, -tl.log(1.0 - uniform))
        score = (value - row_max) / tl.maximum(heat, _SMALLEST_TEMPERATURE) - tl.log(exponential)
        score = tl.where(inside, score, float("-inf"))
        top = tl.max(score, axis=0)
        first = tl.min(tl.where((score == top) & inside, token, vocab - 1), axis=0)
        tl.store(best_score + row * num_tiles + tile, top)
        tl.store(best_token + row * num_tiles + tile, first)


@triton.jit  # type: ignore[untyped-decorator]
def _row_token(
    tile_max: tl.tensor,
    tile_token: tl.tensor,
    best_score: tl.tensor,
    best_token: tl.tensor,
    temperature: tl.tensor,
    tokens: tl.tensor,
    faults: tl.tensor,
    vocab: tl.tensor,
    num_tiles: tl.tensor,
    ALL_GREEDY: tl.constexpr,
    TILES: tl.constexpr,
) -> None:
    """One program a row: the token of the best tile, the lowest id at ties, and whether the row is broken."""
    row = tl.program_id(0).to(tl.int64)
    tiles = tl.arange(0, TILES)
    inside = tiles < num_tiles
    at = row * num_tiles + tiles
    value = tl.load(tile_max + at, mask=inside, other=float("-inf"))
    is_nan = value != value
    value = tl.where(is_nan, float("-inf"), value)
    token = tl.load(tile_token + at, mask=inside, other=0)
    top = tl.max(value, axis=0)
    is_broken = tl.max(is_nan.to(tl.int32), axis=0) > 0
    is_broken = is_broken | (top == float("inf")) | (top == float("-inf"))
    if not ALL_GREEDY:
        # One value for every tile: the interpreter cannot combine a scalar with a mask.
        is_random = tl.load(temperature + row + tl.zeros([TILES], dtype=tl.int32)) > 0
        score = tl.load(best_score + at, mask=inside & is_random, other=float("-inf"))
        drawn = tl.load(best_token + at, mask=inside & is_random, other=0)
        value = tl.where(is_random, score, value)
        token = tl.where(is_random, drawn, token)
        top = tl.max(value, axis=0)
    first = tl.min(tl.where((value == top) & inside, token, vocab - 1), axis=0)
    tl.store(tokens + row, first.to(tl.int64))
    tl.store(faults + row, is_broken.to(tl.uint8))


def draw_tokens(
    logits: Tensor, temperature: Tensor, seeds: Tensor, positions: Tensor, all_greedy: bool
) -> tuple[Tensor, Tensor]:
    """As `llm_kernels.reference.sampling.draw_tokens`; equal to it up to ties within float rounding."""
    num_rows, vocab = logits.shape
    device = logits.device
    tokens = torch.empty(num_rows, dtype=torch.int64, device=device)
    faults = torch.empty(num_rows, dtype=torch.uint8, device=device)
    if num_rows == 0:
        return tokens, faults.bool()
    if logits.stride(1) != 1:
        logits = logits.contiguous()
    num_tiles = triton.cdiv(vocab, _TILE)
    padded = triton.next_power_of_2(num_tiles)
    # Apart, so that all are equally aligned: Triton compiles a kernel anew for other alignments.
    tile_max, best_score = (_empty(num_rows, num_tiles, torch.float32, device) for _ in range(2))
    tile_token, best_token = (_empty(num_rows, num_tiles, torch.int32, device) for _ in range(2))
    sizes = (vocab, logits.stride(0), num_tiles)
    _tile_max[(num_rows, num_tiles)](logits, tile_max, tile_token, *sizes, TILE=_TILE)
    if not all_greedy:
        _tile_draw[(num_rows, num_tiles)](
            logits,
            tile_max,
            temperature,
            seeds,
            positions,
            best_score,
            best_token,
            *sizes,
            TILE=_TILE,
            TILES=padded,
        )
    _row_token[(num_rows,)](
        tile_max,
        tile_token,
        best_score,
        best_token,
        temperature,
        tokens,
        faults,
        vocab,
        num_tiles,
        ALL_GREEDY=all_greedy,
        TILES=padded,
        num_warps=1,
    )
    return tokens, faults.view(torch.bool)


def _empty(num_rows: int, num_tiles: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    return torch.empty((num_rows, num_tiles), dtype=dtype, device=device)
