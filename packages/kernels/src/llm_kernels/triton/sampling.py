"""The draw in one pass over the logits; knows nothing of penalties, of how filters choose, or of requests.

A program reads a tile of a row once, in the logits' own dtype: its largest logit, and for a row that is not
greedy the best of logit over temperature plus noise, counted from the tile's largest, so that no row maximum
must be known first. The second launch takes the best tile of a row and finds the token in it. Tiles are the
same whatever the number of rows, so a row draws the same alone and in a batch.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from llm_kernels.reference import sampling as reference
from llm_kernels.triton.dependent_launch import launch_options, let_later_start, wait_for_earlier
from llm_kernels.triton.launch_sizes import ceil_div, power_of_2

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
def _log(x: tl.tensor, FAST: tl.constexpr) -> tl.tensor:
    """Natural logarithm; the fast one is off by 2e-7, absolute where x is near 1 and relative elsewhere."""
    if FAST:
        result = tl.inline_asm_elementwise(
            "lg2.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1
        )
        result *= 0.6931471805599453
    else:
        result = tl.log(x)
    return result


@triton.jit  # type: ignore[untyped-decorator]
def _gumbel(token: tl.tensor, keys: tl.tensor, FAST: tl.constexpr) -> tl.tensor:
    """The noise of tokens in a row's stream: float32, from the row's 64-bit keys."""
    x = token.to(tl.uint32) * tl.full((), _STEP, tl.uint32) + keys.to(tl.uint32)
    x = (x ^ (x >> 16)) * tl.full((), _ROUND_1, tl.uint32)
    x = x ^ (keys >> 32).to(tl.uint32)
    x = (x ^ (x >> 15)) * tl.full((), _ROUND_2, tl.uint32)
    x = (x ^ (x >> 13)) * tl.full((), _ROUND_3, tl.uint32)
    x = x ^ (x >> 16)
    u = tl.minimum(x.to(tl.float32) * (1.0 / 4294967296.0) + (0.5 / 4294967296.0), _LARGEST_UNIFORM)
    # -log1p(-u) for small u by its series: log(1 - u) would lose the low bits of u.
    series = u + u * u * (0.5 + u * (1.0 / 3.0 + u * (0.25 + u * 0.2)))
    exponential = tl.where(u < 0.03125, series, -_log(1.0 - u, FAST))
    return -_log(exponential, FAST)


@triton.jit  # type: ignore[untyped-decorator]
def _larger_or_nan(a: tl.tensor, b: tl.tensor) -> tl.tensor:
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit  # type: ignore[untyped-decorator]
def _largest_or_nan(value: tl.tensor, FAST: tl.constexpr) -> tl.tensor:
    """The largest value, NaN where there is one."""
    if FAST:
        largest = tl.reduce(value, 0, _larger_or_nan)
    else:
        is_nan = tl.max((value != value).to(tl.int32), axis=0) > 0
        largest = tl.max(tl.where(value != value, float("-inf"), value), axis=0)
        largest = tl.where(is_nan, float("nan"), largest)
    return largest


@triton.jit  # type: ignore[untyped-decorator]
def _scores(
    value: tl.tensor,
    largest: tl.tensor,
    heat: tl.tensor,
    token: tl.tensor,
    seed: tl.tensor,
    position: tl.tensor,
    threshold: tl.tensor,
    HAS_THRESHOLDS: tl.constexpr,
    FAST: tl.constexpr,
) -> tl.tensor:
    """Logits over temperature plus noise, counted from the largest of them; -inf below the threshold."""
    seed, position = seed.to(tl.uint64, bitcast=True), position.to(tl.uint64, bitcast=True)
    keys = _mix64(_mix64(seed + tl.full((), _SPLIT_ADD, tl.uint64)) + position)
    origin = tl.where(largest == float("-inf"), 0.0, largest)
    score = (value - origin) * (1.0 / tl.maximum(heat, _SMALLEST_TEMPERATURE))
    score += _gumbel(token, keys, FAST)
    if HAS_THRESHOLDS:
        score = tl.where(value >= threshold, score, float("-inf"))
    return score


@triton.jit  # type: ignore[untyped-decorator]
def _tile_best(
    logits: tl.tensor,
    temperature: tl.tensor,
    seeds: tl.tensor,
    positions: tl.tensor,
    thresholds: tl.tensor,
    tile_max: tl.tensor,
    tile_score: tl.tensor,
    vocab: tl.tensor,
    stride: tl.tensor,
    num_tiles: tl.tensor,
    HAS_THRESHOLDS: tl.constexpr,
    FAST: tl.constexpr,
    TILE: tl.constexpr,
    PDL: tl.constexpr,
) -> None:
    """One program per (row, tile): the largest logit, NaN where there is one, and the best score."""
    let_later_start(PDL)
    row = tl.program_id(0).to(tl.int64)
    tile = tl.program_id(1)
    token = tile * TILE + tl.arange(0, TILE)
    wait_for_earlier(PDL)
    heat = tl.load(temperature + row)
    value = tl.load(logits + row * stride + token, mask=token < vocab, other=float("-inf")).to(tl.float32)
    largest = _largest_or_nan(value, FAST)
    at = row * num_tiles + tile
    tl.store(tile_max + at, largest)
    if heat > 0:
        threshold = 0.0
        if HAS_THRESHOLDS:
            threshold = tl.load(thresholds + row)
        seed, position = tl.load(seeds + row), tl.load(positions + row)
        score = _scores(value, largest, heat, token, seed, position, threshold, HAS_THRESHOLDS, FAST)
        tl.store(tile_score + at, tl.max(score, axis=0))


@triton.jit  # type: ignore[untyped-decorator]
def _row_token(
    logits: tl.tensor,
    temperature: tl.tensor,
    seeds: tl.tensor,
    positions: tl.tensor,
    thresholds: tl.tensor,
    tile_max: tl.tensor,
    tile_score: tl.tensor,
    tokens: tl.tensor,
    faults: tl.tensor,
    vocab: tl.tensor,
    stride: tl.tensor,
    num_tiles: tl.tensor,
    HAS_THRESHOLDS: tl.constexpr,
    FAST: tl.constexpr,
    TILE: tl.constexpr,
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
    # One value for every tile: the interpreter cannot combine a scalar with a mask.
    heat = tl.load(temperature + row + tl.zeros([TILES], dtype=tl.int32))
    largest = tl.load(tile_max + at, mask=inside, other=float("-inf"))
    score = tl.load(tile_score + at, mask=inside & (heat > 0), other=float("-inf"))
    is_nan = largest != largest
    largest = tl.where(is_nan, float("-inf"), largest)
    row_max = tl.max(largest, axis=0)
    is_broken = tl.max(is_nan.to(tl.int32), axis=0) > 0
    is_broken = is_broken | (row_max == float("inf")) | (row_max == float("-inf"))
    score += (largest - row_max) * (1.0 / tl.maximum(heat, _SMALLEST_TEMPERATURE))
    best = tl.where(heat > 0, score, largest)
    best = tl.where(best != best, float("-inf"), best)
    tile = tl.min(tl.where(inside & (best == tl.max(best, axis=0)), tiles, num_tiles - 1), axis=0)
    token = tile * TILE + tl.arange(0, TILE)
    value = tl.load(logits + row * stride + token, mask=token < vocab, other=float("-inf")).to(tl.float32)
    value = tl.where(value != value, float("-inf"), value)
    heat_of_row = tl.load(temperature + row)
    if heat_of_row > 0:
        threshold = 0.0
        if HAS_THRESHOLDS:
            threshold = tl.load(thresholds + row)
        seed, position = tl.load(seeds + row), tl.load(positions + row)
        value = _scores(
            value,
            tl.max(value, axis=0),
            heat_of_row,
            token,
            seed,
            position,
            threshold,
            HAS_THRESHOLDS,
            FAST,
        )
    # Where all is -inf the first token stands for the tile.
    is_best = (value == tl.max(value, axis=0)) & (token < vocab)
    first = tl.min(tl.where(is_best, token, vocab - 1), axis=0)
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
    num_tiles = ceil_div(vocab, _TILE)
    # Apart, so that all are equally aligned: Triton compiles a kernel anew for other alignments.
    tile_max, tile_score = (torch.empty((num_rows, num_tiles), device=device) for _ in range(2))
    common = {
        "HAS_THRESHOLDS": thresholds is not None,
        "FAST": device.type == "cuda" and torch.version.cuda is not None,
        "TILE": _TILE,
        **launch_options(device),
    }
    given = (logits, temperature, seeds, positions, temperature if thresholds is None else thresholds)
    sizes = (vocab, logits.stride(0), num_tiles)
    _tile_best[(num_rows, num_tiles)](*given, tile_max, tile_score, *sizes, num_warps=_WARPS, **common)
    _row_token[(num_rows,)](
        *given,
        tile_max,
        tile_score,
        tokens,
        faults,
        *sizes,
        TILES=power_of_2(num_tiles),
        num_warps=_WARPS,
        **common,
    )
    return tokens, faults.view(torch.bool)
