"""The draw in one pass over the logits; knows nothing of penalties, of how filters choose, or of requests.

A program reads a tile of a row once, in the logits' own dtype: its largest logit, and for a row that is not
greedy the best of logit over temperature plus noise, counted from the tile's largest, so that no row maximum
must be known first. The second launch looks at the tiles only. Tiles are the same whatever the number of
rows, so a row draws the same alone and in a batch.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from llm_kernels.reference import sampling as reference
from llm_kernels.triton.dependent_launch import launch_options, let_later_start, wait_for_earlier

_TILE = 2048
_WARPS = 4

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
def _mix64(x: tl.tensor) -> tl.tensor:
    """A round of the 64-bit hash of `reference.row_keys`."""
    x = (x ^ (x >> 30)) * tl.full((), _SPLIT_1, tl.uint64)
    x = (x ^ (x >> 27)) * tl.full((), _SPLIT_2, tl.uint64)
    return x ^ (x >> 31)


@triton.jit  # type: ignore[untyped-decorator]
def _gumbel(token: tl.tensor, seed: tl.tensor, position: tl.tensor) -> tl.tensor:
    """The noise of tokens in a row's stream: float32, from 64-bit seed and position."""
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
    return -tl.log(exponential)


@triton.jit  # type: ignore[untyped-decorator]
def _tile_draw(
    logits: tl.tensor,
    temperature: tl.tensor,
    seeds: tl.tensor,
    positions: tl.tensor,
    thresholds: tl.tensor,
    tile_max: tl.tensor,
    tile_score: tl.tensor,
    tile_token: tl.tensor,
    vocab: tl.tensor,
    stride: tl.tensor,
    num_tiles: tl.tensor,
    HAS_THRESHOLDS: tl.constexpr,
    TILE: tl.constexpr,
    PDL: tl.constexpr,
) -> None:
    """One program per (row, tile): the largest logit (NaN where there is one), the best score, its token.

    The score counts from the tile's largest logit; a greedy row's is 0. At ties the lowest id wins.
    """
    let_later_start(PDL)
    row = tl.program_id(0).to(tl.int64)
    tile = tl.program_id(1)
    token = tile * TILE + tl.arange(0, TILE)
    inside = token < vocab
    wait_for_earlier(PDL)
    heat = tl.load(temperature + row)
    value = tl.load(logits + row * stride + token, mask=inside, other=float("-inf")).to(tl.float32)
    is_nan = value != value
    value = tl.where(is_nan, float("-inf"), value)
    largest = tl.max(value, axis=0)
    top = 0.0
    if heat > 0:
        seed = tl.load(seeds + row).to(tl.uint64, bitcast=True)
        position = tl.load(positions + row).to(tl.uint64, bitcast=True)
        origin = tl.where(largest == float("-inf"), 0.0, largest)
        score = (value - origin) * (1.0 / tl.maximum(heat, _SMALLEST_TEMPERATURE))
        score += _gumbel(token, seed, position)
        if HAS_THRESHOLDS:
            score = tl.where(value >= tl.load(thresholds + row), score, float("-inf"))
        score = tl.where(inside, score, float("-inf"))
        top = tl.max(score, axis=0)
        is_best = score == top
    else:
        is_best = value == largest
    # Where all is -inf the first token stands for the tile.
    first = tl.min(tl.where(is_best & inside, token, vocab - 1), axis=0)
    largest = tl.where(tl.max(is_nan.to(tl.int32), axis=0) > 0, float("nan"), largest)
    at = row * num_tiles + tile
    tl.store(tile_max + at, largest)
    tl.store(tile_score + at, top)
    tl.store(tile_token + at, first)


@triton.jit  # type: ignore[untyped-decorator]
def _row_token(
    tile_max: tl.tensor,
    tile_score: tl.tensor,
    tile_token: tl.tensor,
    temperature: tl.tensor,
    tokens: tl.tensor,
    faults: tl.tensor,
    vocab: tl.tensor,
    num_tiles: tl.tensor,
    TILES: tl.constexpr,
    PDL: tl.constexpr,
) -> None:
    """One program a row: the token of the best tile, the lowest id at ties, and whether the row is broken."""
    let_later_start(PDL)
    row = tl.program_id(0).to(tl.int64)
    tiles = tl.arange(0, TILES)
    inside = tiles < num_tiles
    at = row * num_tiles + tiles
    wait_for_earlier(PDL)
    largest = tl.load(tile_max + at, mask=inside, other=float("-inf"))
    score = tl.load(tile_score + at, mask=inside, other=float("-inf"))
    token = tl.load(tile_token + at, mask=inside, other=0)
    # One value for every tile: the interpreter cannot combine a scalar with a mask.
    heat = tl.load(temperature + row + tl.zeros([TILES], dtype=tl.int32))
    is_nan = largest != largest
    largest = tl.where(is_nan, float("-inf"), largest)
    row_max = tl.max(largest, axis=0)
    is_broken = tl.max(is_nan.to(tl.int32), axis=0) > 0
    is_broken = is_broken | (row_max == float("inf")) | (row_max == float("-inf"))
    score += (largest - row_max) * (1.0 / tl.maximum(heat, _SMALLEST_TEMPERATURE))
    value = tl.where(heat > 0, score, largest)
    value = tl.where(value != value, float("-inf"), value)
    top = tl.max(value, axis=0)
    first = tl.min(tl.where((value == top) & inside, token, vocab - 1), axis=0)
    tl.store(tokens + row, first.to(tl.int64))
    tl.store(faults + row, is_broken.to(tl.uint8))


def draw_tokens(
    logits: Tensor,
    temperature: Tensor,
    seeds: Tensor,
    positions: Tensor,
    thresholds: Tensor | None,
    all_greedy: bool,  # noqa: ARG001 - the device sees for itself
) -> tuple[Tensor, Tensor]:
    """As `llm_kernels.reference.sampling.draw_tokens`; equal to it up to ties within float rounding."""
    num_rows, vocab = logits.shape
    device = logits.device
    tokens = torch.empty(num_rows, dtype=torch.int64, device=device)
    faults = torch.empty(num_rows, dtype=torch.uint8, device=device)
    if num_rows == 0:
        return tokens, faults.view(torch.bool)
    if logits.stride(1) != 1:
        logits = logits.contiguous()
    num_tiles = triton.cdiv(vocab, _TILE)
    # Apart, so that all are equally aligned: Triton compiles a kernel anew for other alignments.
    tile_max, tile_score = (torch.empty((num_rows, num_tiles), device=device) for _ in range(2))
    tile_token = torch.empty((num_rows, num_tiles), dtype=torch.int32, device=device)
    options = launch_options(device)
    _tile_draw[(num_rows, num_tiles)](
        logits,
        temperature,
        seeds,
        positions,
        temperature if thresholds is None else thresholds,
        tile_max,
        tile_score,
        tile_token,
        vocab,
        logits.stride(0),
        num_tiles,
        HAS_THRESHOLDS=thresholds is not None,
        TILE=_TILE,
        num_warps=_WARPS,
        **options,
    )
    _row_token[(num_rows,)](
        tile_max,
        tile_score,
        tile_token,
        temperature,
        tokens,
        faults,
        vocab,
        num_tiles,
        TILES=triton.next_power_of_2(num_tiles),
        num_warps=1,
        **options,
    )
    return tokens, faults.view(torch.bool)
