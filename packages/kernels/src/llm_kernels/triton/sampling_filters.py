"""Thresholds of top-k, top-p and min-p without a sort; knows nothing of the draw or of requests.

Four launches over the filtered rows: the largest logit of each stretch of 256; from these a cut that lies
surely below the threshold; the few logits above the cut, side by side, with the mass of the whole row where
it counts; a search over the ordered bits of those logits. Where they are too many the search goes over the
row itself. Masses are sums of integers (weights times 2^40), so no order of summing matters: a row gets the
same threshold alone and in a batch.
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from llm_kernels.reference import sampling as reference
from llm_kernels.sampling_batch import SamplingBatch
from llm_kernels.triton.dependent_launch import launch_options, let_later_start, wait_for_earlier
from llm_kernels.triton.launch_sizes import ceil_div, power_of_2

_TILE = 2048
_STRETCH = 256
_CANDIDATES = 8192
_SEARCH_BLOCK = 4096
# Bits of a float32 key that are the same for all values of a dtype.
SPARE_BITS = {torch.float32: 0, torch.bfloat16: 16, torch.float16: 13}

_SMALLEST_TEMPERATURE = tl.constexpr(reference.SMALLEST_TEMPERATURE)
_UNIT_MASS = tl.constexpr(2.0**40)
SMALLEST = tl.constexpr(-3.4028234663852886e38)


@triton.jit  # type: ignore[untyped-decorator]
def key_of(value: tl.tensor, SPARE_BITS: tl.constexpr) -> tl.tensor:
    """int32 in the order of the float32 values, without the bits that are all alike."""
    bits = value.to(tl.int32, bitcast=True)
    return (bits ^ ((bits >> 31) & 0x7FFFFFFF)) >> SPARE_BITS


@triton.jit  # type: ignore[untyped-decorator]
def value_of(key: tl.tensor, SPARE_BITS: tl.constexpr) -> tl.tensor:
    """The least float32 with a key (int64 or int32)."""
    bits = (key << SPARE_BITS).to(tl.int32)
    return (bits ^ ((bits >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@triton.jit  # type: ignore[untyped-decorator]
def _weights(
    value: tl.tensor, inside: tl.tensor, largest: tl.tensor, inverse: tl.tensor, IS_MASS: tl.constexpr
) -> tl.tensor:
    """int64: exp((value - largest) / temperature) in units of 2^-40, or 1 each."""
    if IS_MASS:
        weight = (tl.exp((value - largest) * inverse) * _UNIT_MASS).to(tl.int64)
    else:
        weight = inside.to(tl.int64)
    return weight


@triton.jit  # type: ignore[untyped-decorator]
def least_kept(
    source: tl.tensor,
    count: tl.tensor,
    low: tl.tensor,
    high: tl.tensor,
    bound: tl.tensor,
    largest: tl.tensor,
    inverse: tl.tensor,
    IS_MASS: tl.constexpr,
    SPARE_BITS: tl.constexpr,
    BLOCK: tl.constexpr,
) -> tl.tensor:
    """The least key from `low` to `high` (int64) such that what lies above weighs less than `bound` (int64).

    What lies above `high` must weigh less. Each round looks at three keys between the two: in equal steps of
    the value in even rounds, where the two are far apart, of the key in odd rounds.
    """
    rounds = 0
    while low < high:
        width = high - low
        first = low + width // 4
        second = low + width // 2
        third = second + width // 4
        if (rounds % 2 == 0) & (width > (1 << (24 - SPARE_BITS))):
            from_value = value_of(low, SPARE_BITS)
            step = value_of(high, SPARE_BITS) * 0.25 - from_value * 0.25
            first = key_of(from_value + step, SPARE_BITS).to(tl.int64)
            second = key_of(from_value + 2 * step, SPARE_BITS).to(tl.int64)
            third = key_of(from_value + 3 * step, SPARE_BITS).to(tl.int64)
            first = tl.minimum(tl.maximum(first, low), high - 1)
            second = tl.minimum(tl.maximum(second, first), high - 1)
            third = tl.minimum(tl.maximum(third, second), high - 1)
        rounds += 1
        above_first = tl.zeros([BLOCK], dtype=tl.int64)
        above_second = tl.zeros([BLOCK], dtype=tl.int64)
        above_third = tl.zeros([BLOCK], dtype=tl.int64)
        # Unrolled, so that several loads are on their way at once.
        for start in tl.range(0, count, BLOCK, loop_unroll_factor=4):
            place = start + tl.arange(0, BLOCK)
            inside = place < count
            value = tl.load(source + place, mask=inside, other=float("-inf")).to(tl.float32)
            key = key_of(value, SPARE_BITS)
            weight = _weights(value, inside, largest, inverse, IS_MASS)
            above_first += tl.where(key > first.to(tl.int32), weight, 0)
            above_second += tl.where(key > second.to(tl.int32), weight, 0)
            above_third += tl.where(key > third.to(tl.int32), weight, 0)
        if tl.sum(above_first, axis=0) < bound:
            high = first
        elif tl.sum(above_second, axis=0) < bound:
            low = first + 1
            high = second
        elif tl.sum(above_third, axis=0) < bound:
            low = second + 1
            high = third
        else:
            low = third + 1
    return low


@triton.jit  # type: ignore[untyped-decorator]
def _stretch_maxima(
    logits: tl.tensor,
    rows: tl.tensor,
    maxima: tl.tensor,
    vocab: tl.tensor,
    stride: tl.tensor,
    num_stretches: tl.tensor,
    HAS_ROWS: tl.constexpr,
    TILE: tl.constexpr,
    STRETCH: tl.constexpr,
    PDL: tl.constexpr,
) -> None:
    """Grid (filtered rows, tiles): the largest logit of each stretch, +inf where one is NaN."""
    let_later_start(PDL)
    place = tl.program_id(0).to(tl.int64)
    tile = tl.program_id(1)
    token = tile * TILE + tl.arange(0, TILE)
    wait_for_earlier(PDL)
    row = place
    if HAS_ROWS:
        row = tl.load(rows + place)
    value = tl.load(logits + row * stride + token, mask=token < vocab, other=float("-inf")).to(tl.float32)
    value = tl.where(value != value, float("inf"), value)
    largest = tl.max(tl.reshape(value, [TILE // STRETCH, STRETCH]), axis=1)
    stretch = tile * (TILE // STRETCH) + tl.arange(0, TILE // STRETCH)
    at = maxima + place * num_stretches + stretch
    tl.store(at, largest.to(maxima.dtype.element_ty), mask=stretch < num_stretches)


@triton.jit  # type: ignore[untyped-decorator]
def _cuts(
    maxima: tl.tensor,
    rows: tl.tensor,
    temperature: tl.tensor,
    top_k: tl.tensor,
    top_p: tl.tensor,
    row_max: tl.tensor,
    cuts: tl.tensor,
    counts: tl.tensor,
    totals: tl.tensor,
    vocab: tl.tensor,
    log_vocab: tl.tensor,
    num_stretches: tl.tensor,
    HAS_ROWS: tl.constexpr,
    SPARE_BITS: tl.constexpr,
    BLOCK: tl.constexpr,
    PDL: tl.constexpr,
) -> None:
    """One program a filtered row: its largest logit, and a cut below which its threshold cannot lie.

    With top-k: as many stretches reach the cut as tokens are kept; -inf where there are not so many. With
    top-p alone: all that lies below weighs too little. +inf: no search is needed.
    """
    let_later_start(PDL)
    place = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    wait_for_earlier(PDL)
    row = place
    if HAS_ROWS:
        row = tl.load(rows + place)
    source = maxima + place * num_stretches
    largest = tl.max(
        tl.load(source + column, mask=column < num_stretches, other=float("-inf")).to(tl.float32), axis=0
    )
    heat = tl.load(temperature + row)
    share = tl.load(top_p + row)
    kept = tl.load(top_k + row)
    has_top_k = (kept > 0) & (kept < vocab)
    is_searched = (heat > 0) & (tl.abs(largest) < float("inf")) & (has_top_k | (share < 1))
    cut = float("inf")
    if is_searched:
        if has_top_k:
            cut = float("-inf")
            if kept <= num_stretches:
                low = key_of(tl.full((), SMALLEST, tl.float32), SPARE_BITS).to(tl.int64)
                high = key_of(largest, SPARE_BITS).to(tl.int64)
                found = least_kept(
                    source, num_stretches, low, high, kept.to(tl.int64), 0.0, 0.0, False, SPARE_BITS, BLOCK
                )
                cut = value_of(found, SPARE_BITS)
        else:
            # exp(-depth) times the vocabulary is less than what top-p leaves out of the largest's weight.
            depth = log_vocab - tl.log(1.0 - share) + 0.01
            cut = tl.maximum(largest - tl.maximum(heat, _SMALLEST_TEMPERATURE) * depth, SMALLEST)
    tl.store(row_max + place, largest)
    tl.store(cuts + place, cut)
    tl.store(counts + place, 0)
    tl.store(totals + place, tl.full((), 0, tl.int64))


@triton.jit  # type: ignore[untyped-decorator]
def _gather(
    logits: tl.tensor,
    rows: tl.tensor,
    maxima: tl.tensor,
    temperature: tl.tensor,
    top_k: tl.tensor,
    row_max: tl.tensor,
    cuts: tl.tensor,
    counts: tl.tensor,
    totals: tl.tensor,
    candidates: tl.tensor,
    vocab: tl.tensor,
    stride: tl.tensor,
    num_stretches: tl.tensor,
    HAS_ROWS: tl.constexpr,
    TILE: tl.constexpr,
    STRETCH: tl.constexpr,
    CANDIDATES: tl.constexpr,
    PDL: tl.constexpr,
) -> None:
    """Grid (filtered rows, tiles): puts what reaches the cut side by side; adds up the mass."""
    let_later_start(PDL)
    place = tl.program_id(0).to(tl.int64)
    tile = tl.program_id(1)
    token = tile * TILE + tl.arange(0, TILE)
    stretch = tile * (TILE // STRETCH) + tl.arange(0, TILE // STRETCH)
    wait_for_earlier(PDL)
    cut = tl.load(cuts + place)
    if (cut < float("inf")) & (cut > float("-inf")):
        row = place
        if HAS_ROWS:
            row = tl.load(rows + place)
        kept = tl.load(top_k + row)
        is_alone = (kept <= 0) | (kept >= vocab)
        at = maxima + place * num_stretches + stretch
        tops = tl.load(at, mask=stretch < num_stretches, other=float("-inf")).to(tl.float32)
        reaches = tl.max(tops, axis=0) >= cut
        if is_alone | reaches:
            value = tl.load(logits + row * stride + token, mask=token < vocab, other=float("-inf"))
            value = value.to(tl.float32)
            if is_alone:
                inverse = 1.0 / tl.maximum(tl.load(temperature + row), _SMALLEST_TEMPERATURE)
                mass = _weights(value, token < vocab, tl.load(row_max + place), inverse, True)
                tl.atomic_add(totals + place, tl.sum(mass, axis=0), sem="relaxed")
            if reaches:
                is_kept = (value >= cut).to(tl.int32)
                first = tl.atomic_add(counts + place, tl.sum(is_kept, axis=0), sem="relaxed")
                to = first + tl.cumsum(is_kept, axis=0) - 1
                fits = (is_kept > 0) & (to < CANDIDATES)
                copied = value.to(candidates.dtype.element_ty)
                tl.store(candidates + place * CANDIDATES + to, copied, mask=fits)


@triton.jit  # type: ignore[untyped-decorator]
def _select(
    logits: tl.tensor,
    rows: tl.tensor,
    temperature: tl.tensor,
    top_k: tl.tensor,
    top_p: tl.tensor,
    min_p: tl.tensor,
    row_max: tl.tensor,
    cuts: tl.tensor,
    counts: tl.tensor,
    totals: tl.tensor,
    candidates: tl.tensor,
    thresholds: tl.tensor,
    vocab: tl.tensor,
    stride: tl.tensor,
    HAS_ROWS: tl.constexpr,
    CANDIDATES: tl.constexpr,
    SPARE_BITS: tl.constexpr,
    BLOCK: tl.constexpr,
    PDL: tl.constexpr,
) -> None:
    """One program a filtered row: its threshold."""
    let_later_start(PDL)
    place = tl.program_id(0).to(tl.int64)
    wait_for_earlier(PDL)
    row = place
    if HAS_ROWS:
        row = tl.load(rows + place)
    heat = tl.maximum(tl.load(temperature + row), _SMALLEST_TEMPERATURE)
    inverse = 1.0 / heat
    largest = tl.load(row_max + place)
    cut = tl.load(cuts + place)
    least = tl.load(min_p + row)
    threshold = float("-inf")
    if cut < float("inf"):
        kept = tl.load(top_k + row)
        share = tl.load(top_p + row)
        count = tl.load(counts + place)
        source = candidates + place * CANDIDATES
        if (count > CANDIDATES) | (cut == float("-inf")):
            source = logits + row * stride
            count = vocab
        low = key_of(tl.maximum(cut, SMALLEST), SPARE_BITS).to(tl.int64)
        high = key_of(largest, SPARE_BITS).to(tl.int64)
        total = tl.load(totals + place)
        if (kept > 0) & (kept < vocab):
            low = least_kept(
                source, count, low, high, kept.to(tl.int64), largest, inverse, False, SPARE_BITS, BLOCK
            )
            mass = tl.zeros([BLOCK], dtype=tl.int64)
            if share < 1:
                for start in range(0, count, BLOCK):
                    at = start + tl.arange(0, BLOCK)
                    value = tl.load(source + at, mask=at < count, other=float("-inf")).to(tl.float32)
                    weight = _weights(value, at < count, largest, inverse, True)
                    mass += tl.where(key_of(value, SPARE_BITS) >= low.to(tl.int32), weight, 0)
            total = tl.sum(mass, axis=0)
        if share < 1:
            # The largest stays even if the share rounds to nothing.
            bound = tl.maximum((share.to(tl.float64) * total.to(tl.float64)).to(tl.int64), 1)
            low = least_kept(source, count, low, high, bound, largest, inverse, True, SPARE_BITS, BLOCK)
        threshold = value_of(low, SPARE_BITS)
    if (least > 0) & (tl.abs(largest) < float("inf")) & (tl.load(temperature + row) > 0):
        threshold = tl.maximum(threshold, tl.minimum(largest + heat * tl.log(least), largest))
    tl.store(thresholds + row, threshold)


def filter_thresholds(logits: Tensor, params: SamplingBatch) -> Tensor:
    """As `llm_kernels.reference.sampling.filter_thresholds`, but -inf for greedy and for broken rows.

    At a border it may differ by what float32 rounding of the scaled logits or of the masses is.
    """
    num_rows, vocab = logits.shape
    device, rows = logits.device, params.filtered_rows
    num_filtered = num_rows if rows is None else len(rows)
    thresholds = torch.full((num_rows,), -math.inf, device=device)
    if num_filtered == 0:
        return thresholds
    if logits.stride(1) != 1:
        logits = logits.contiguous()
    num_stretches = ceil_div(vocab, _STRETCH)
    maxima = torch.empty((num_filtered, num_stretches), dtype=logits.dtype, device=device)
    row_max, cuts = (torch.empty(num_filtered, device=device) for _ in range(2))
    counts = torch.empty(num_filtered, dtype=torch.int32, device=device)
    totals = torch.empty(num_filtered, dtype=torch.int64, device=device)
    candidates = torch.empty((num_filtered, _CANDIDATES), dtype=logits.dtype, device=device)
    index = params.top_k if rows is None else rows
    temperature, top_k, top_p = params.temperature, params.top_k, params.top_p
    sizes = (vocab, logits.stride(0))
    common = {"HAS_ROWS": rows is not None, **launch_options(device)}
    bits = {"SPARE_BITS": SPARE_BITS[logits.dtype]}
    tiles = {"TILE": _TILE, "STRETCH": _STRETCH}
    grid = (num_filtered, ceil_div(vocab, _TILE))
    _stretch_maxima[grid](logits, index, maxima, *sizes, num_stretches, **tiles, **common)
    _cuts[(num_filtered,)](
        maxima,
        index,
        temperature,
        top_k,
        top_p,
        row_max,
        cuts,
        counts,
        totals,
        vocab,
        math.log(vocab),
        num_stretches,
        BLOCK=power_of_2(num_stretches),
        **bits,
        **common,
    )
    _gather[grid](
        logits,
        index,
        maxima,
        temperature,
        top_k,
        row_max,
        cuts,
        counts,
        totals,
        candidates,
        *sizes,
        num_stretches,
        CANDIDATES=_CANDIDATES,
        **tiles,
        **common,
    )
    _select[(num_filtered,)](
        logits,
        index,
        temperature,
        top_k,
        top_p,
        params.min_p,
        row_max,
        cuts,
        counts,
        totals,
        candidates,
        thresholds,
        *sizes,
        CANDIDATES=_CANDIDATES,
        BLOCK=_SEARCH_BLOCK,
        num_warps=16,
        **bits,
        **common,
    )
    return thresholds
