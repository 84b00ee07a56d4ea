"""Log probability and rank of given tokens and the likeliest ones, without a sort; knows nothing of requests.

One pass over the logits, in their own dtype, for the sums, the ranks and the largest of each stretch of 256.
The n-th largest of these is a cut that at least n logits reach; what reaches it is put side by side, and the
likeliest are taken from there one after the other, the lowest id first at ties.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from llm_kernels.triton.dependent_launch import launch_options, let_later_start, wait_for_earlier
from llm_kernels.triton.launch_sizes import ceil_div, power_of_2
from llm_kernels.triton.sampling_filters import SMALLEST, SPARE_BITS, key_of, least_kept, value_of

_TILE = 2048
_STRETCH = 256
_CANDIDATES = 4096
_BLOCK = 1024

_NONE = tl.constexpr(-(2**63))


@triton.jit  # type: ignore[untyped-decorator]
def _tile_sums(
    logits: tl.tensor,
    tokens: tl.tensor,
    maxima: tl.tensor,
    tile_max: tl.tensor,
    tile_sum: tl.tensor,
    tile_above: tl.tensor,
    vocab: tl.tensor,
    stride: tl.tensor,
    num_tiles: tl.tensor,
    num_stretches: tl.tensor,
    HAS_TOP: tl.constexpr,
    TILE: tl.constexpr,
    STRETCH: tl.constexpr,
    PDL: tl.constexpr,
) -> None:
    """Grid (rows, tiles): the largest logit, the sum of exponentials from it, logits above the token's."""
    let_later_start(PDL)
    row = tl.program_id(0).to(tl.int64)
    tile = tl.program_id(1)
    place = tile * TILE + tl.arange(0, TILE)
    wait_for_earlier(PDL)
    source = logits + row * stride
    given = tl.load(source + tl.load(tokens + row)).to(tl.float32)
    value = tl.load(source + place, mask=place < vocab, other=float("-inf")).to(tl.float32)
    largest = tl.max(value, axis=0)
    origin = tl.where(largest == float("-inf"), 0.0, largest)
    at = row * num_tiles + tile
    tl.store(tile_max + at, largest)
    tl.store(tile_sum + at, tl.sum(tl.exp(value - origin), axis=0))
    tl.store(tile_above + at, tl.sum((value > given).to(tl.int32), axis=0))
    if HAS_TOP:
        tops = tl.max(tl.reshape(value, [TILE // STRETCH, STRETCH]), axis=1)
        stretch = tile * (TILE // STRETCH) + tl.arange(0, TILE // STRETCH)
        to = maxima + row * num_stretches + stretch
        tl.store(to, tops.to(maxima.dtype.element_ty), mask=stretch < num_stretches)


@triton.jit  # type: ignore[untyped-decorator]
def _row_sums(
    logits: tl.tensor,
    tokens: tl.tensor,
    maxima: tl.tensor,
    tile_max: tl.tensor,
    tile_sum: tl.tensor,
    tile_above: tl.tensor,
    log_sums: tl.tensor,
    logprobs: tl.tensor,
    ranks: tl.tensor,
    cuts: tl.tensor,
    counts: tl.tensor,
    stride: tl.tensor,
    num_tiles: tl.tensor,
    num_stretches: tl.tensor,
    num_top: tl.tensor,
    HAS_TOP: tl.constexpr,
    TILES: tl.constexpr,
    STRETCHES: tl.constexpr,
    SPARE: tl.constexpr,
    PDL: tl.constexpr,
) -> None:
    """One program a row: the token's log probability and rank, and the cut that `num_top` stretches reach."""
    let_later_start(PDL)
    row = tl.program_id(0).to(tl.int64)
    tiles = tl.arange(0, TILES)
    inside = tiles < num_tiles
    at = row * num_tiles + tiles
    wait_for_earlier(PDL)
    largest = tl.load(tile_max + at, mask=inside, other=float("-inf"))
    row_max = tl.max(largest, axis=0)
    total = tl.load(tile_sum + at, mask=inside, other=0.0) * tl.exp(largest - row_max)
    log_sum = row_max + tl.log(tl.sum(tl.where(inside, total, 0.0), axis=0))
    given = tl.load(logits + row * stride + tl.load(tokens + row)).to(tl.float32)
    above = tl.sum(tl.load(tile_above + at, mask=inside, other=0), axis=0)
    tl.store(log_sums + row, log_sum)
    tl.store(logprobs + row, given - log_sum)
    tl.store(ranks + row, above.to(tl.int64) + 1)
    if HAS_TOP:
        cut = float("-inf")
        if (num_top <= num_stretches) & (tl.abs(row_max) < float("inf")):
            low = key_of(tl.full((), SMALLEST, tl.float32), SPARE).to(tl.int64)
            high = key_of(row_max, SPARE).to(tl.int64)
            source = maxima + row * num_stretches
            bound = tl.full((), num_top, tl.int64)
            found = least_kept(source, num_stretches, low, high, bound, 0.0, 0.0, False, SPARE, STRETCHES)
            cut = value_of(found, SPARE)
            if cut <= SMALLEST:  # fewer stretches than that have a token that can be drawn
                cut = float("-inf")
        tl.store(cuts + row, cut)
        tl.store(counts + row, 0)


@triton.jit  # type: ignore[untyped-decorator]
def _order(value: tl.tensor, token: tl.tensor) -> tl.tensor:
    """int64 that is larger for larger logits, and for lower ids among equal ones."""
    bits = value.to(tl.int32, bitcast=True)
    key = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    return (key.to(tl.int64) << 32) | (0x7FFFFFFF - token).to(tl.int64)


@triton.jit  # type: ignore[untyped-decorator]
def _gather_top(
    logits: tl.tensor,
    maxima: tl.tensor,
    cuts: tl.tensor,
    counts: tl.tensor,
    candidates: tl.tensor,
    vocab: tl.tensor,
    stride: tl.tensor,
    num_stretches: tl.tensor,
    TILE: tl.constexpr,
    STRETCH: tl.constexpr,
    CANDIDATES: tl.constexpr,
    PDL: tl.constexpr,
) -> None:
    """Grid (rows, tiles): puts what reaches the cut side by side."""
    let_later_start(PDL)
    row = tl.program_id(0).to(tl.int64)
    tile = tl.program_id(1)
    token = tile * TILE + tl.arange(0, TILE)
    stretch = tile * (TILE // STRETCH) + tl.arange(0, TILE // STRETCH)
    wait_for_earlier(PDL)
    cut = tl.load(cuts + row)
    tops = tl.load(maxima + row * num_stretches + stretch, mask=stretch < num_stretches, other=float("-inf"))
    if (cut > float("-inf")) & (tl.max(tops.to(tl.float32), axis=0) >= cut):
        value = tl.load(logits + row * stride + token, mask=token < vocab, other=float("-inf"))
        value = value.to(tl.float32)
        is_kept = (value >= cut).to(tl.int32)
        first = tl.atomic_add(counts + row, tl.sum(is_kept, axis=0), sem="relaxed")
        to = first + tl.cumsum(is_kept, axis=0) - 1
        fits = (is_kept > 0) & (to < CANDIDATES)
        tl.store(candidates + row * CANDIDATES + to, _order(value, token), mask=fits)


@triton.jit  # type: ignore[untyped-decorator]
def _take_top(
    logits: tl.tensor,
    cuts: tl.tensor,
    counts: tl.tensor,
    candidates: tl.tensor,
    log_sums: tl.tensor,
    top_ids: tl.tensor,
    top_logprobs: tl.tensor,
    vocab: tl.tensor,
    stride: tl.tensor,
    num_top: tl.tensor,
    CANDIDATES: tl.constexpr,
    BLOCK: tl.constexpr,
    PDL: tl.constexpr,
) -> None:
    """One program a row: the likeliest, one after the other."""
    let_later_start(PDL)
    row = tl.program_id(0).to(tl.int64)
    wait_for_earlier(PDL)
    count = tl.load(counts + row)
    is_whole = (count > CANDIDATES) | (tl.load(cuts + row) == float("-inf"))
    log_sum = tl.load(log_sums + row)
    last = tl.full((), 2**63 - 1, tl.int64)
    for place in range(num_top):
        best = tl.full([BLOCK], _NONE, tl.int64)
        if is_whole:
            for start in range(0, vocab, BLOCK):
                token = start + tl.arange(0, BLOCK)
                value = tl.load(logits + row * stride + token, mask=token < vocab, other=float("-inf"))
                order = _order(value.to(tl.float32), token)
                best = tl.where((token < vocab) & (order < last) & (order > best), order, best)
        else:
            for start in range(0, count, BLOCK):
                at = start + tl.arange(0, BLOCK)
                order = tl.load(candidates + row * CANDIDATES + at, mask=at < count, other=_NONE)
                best = tl.where((order < last) & (order > best), order, best)
        last = tl.max(best, axis=0)
        tl.store(top_ids + row * num_top + place, 0x7FFFFFFF - (last & 0x7FFFFFFF))
        value = value_of(last >> 32, 0)
        tl.store(top_logprobs + row * num_top + place, value - log_sum)


def token_ranks(logits: Tensor, tokens: Tensor, num_top: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """As `llm_kernels.reference.sampling.token_ranks`; the lowest ids come first at ties."""
    num_rows, vocab = logits.shape
    device = logits.device
    num_top = min(num_top, vocab)
    logprobs, log_sums, cuts = (torch.empty(num_rows, device=device) for _ in range(3))
    ranks = torch.empty(num_rows, dtype=torch.int64, device=device)
    top_ids = torch.empty((num_rows, num_top), dtype=torch.int64, device=device)
    top_logprobs = torch.empty((num_rows, num_top), device=device)
    if num_rows == 0:
        return logprobs, ranks, top_ids, top_logprobs
    if logits.stride(1) != 1:
        logits = logits.contiguous()
    num_tiles, num_stretches = ceil_div(vocab, _TILE), ceil_div(vocab, _STRETCH)
    maxima = torch.empty((num_rows, num_stretches), dtype=logits.dtype, device=device)
    tile_max, tile_sum = (torch.empty((num_rows, num_tiles), device=device) for _ in range(2))
    tile_above = torch.empty((num_rows, num_tiles), dtype=torch.int32, device=device)
    counts = torch.empty(num_rows, dtype=torch.int32, device=device)
    pdl = launch_options(device)
    tiles = {"TILE": _TILE, "STRETCH": _STRETCH}
    grid, stride = (num_rows, num_tiles), logits.stride(0)
    sums = (maxima, tile_max, tile_sum, tile_above)
    sizes = (vocab, stride, num_tiles, num_stretches)
    _tile_sums[grid](logits, tokens, *sums, *sizes, HAS_TOP=num_top > 0, **tiles, **pdl)
    _row_sums[(num_rows,)](
        logits,
        tokens,
        *sums,
        log_sums,
        logprobs,
        ranks,
        cuts,
        counts,
        *sizes[1:],
        num_top,
        HAS_TOP=num_top > 0,
        TILES=power_of_2(num_tiles),
        STRETCHES=power_of_2(num_stretches),
        SPARE=SPARE_BITS[logits.dtype],
        **pdl,
    )
    if num_top > 0:
        candidates = torch.empty((num_rows, _CANDIDATES), dtype=torch.int64, device=device)
        found = (cuts, counts, candidates)
        _gather_top[grid](
            logits,
            maxima,
            *found,
            vocab,
            stride,
            num_stretches,
            CANDIDATES=_CANDIDATES,
            **tiles,
            **pdl,
        )
        _take_top[(num_rows,)](
            logits,
            *found,
            log_sums,
            top_ids,
            top_logprobs,
            vocab,
            stride,
            num_top,
            CANDIDATES=_CANDIDATES,
            BLOCK=_BLOCK,
            **pdl,
        )
    return logprobs, ranks, top_ids, top_logprobs
