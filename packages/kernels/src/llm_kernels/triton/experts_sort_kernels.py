"""Kernels that sort pairs by expert into blocks; know nothing about what is done with the pairs.

A pair is one (token, choice): pair p belongs to token p // K. Blocks hold BLOCK_M pairs of one expert; the
last block of an expert is filled up with the number of pairs, which is no pair.
"""

from __future__ import annotations

import triton
import triton.language as tl

from llm_kernels.triton.dependent_launch import let_later_start, wait_for_earlier


@triton.jit  # type: ignore[untyped-decorator]
def _load_ids(ids: tl.tensor, pair: tl.tensor, num_pairs: tl.tensor, num_experts: tl.tensor) -> tl.tensor:
    """Ids as int32; num_experts where there is no pair or no expert."""
    given = tl.load(ids + pair, mask=pair < num_pairs, other=-1)
    return tl.where((given >= 0) & (given < num_experts), given, num_experts).to(tl.int32)


@triton.jit  # type: ignore[untyped-decorator]
def _fill_blocks(
    pairs: tl.tensor,
    block_experts: tl.tensor,
    expert: tl.tensor,
    count: tl.tensor,
    first_block: tl.tensor,
    num_pairs: tl.tensor,
    num_experts: tl.tensor,
    max_blocks: tl.tensor,
    LANES: tl.constexpr,
    BLOCK_M: tl.constexpr,
) -> None:
    """Names the expert of its blocks and fills the last one up; the last expert marks the blocks unused."""
    lane = tl.arange(0, LANES)
    num_blocks = (count + BLOCK_M - 1) // BLOCK_M
    for start in range(0, num_blocks, LANES):
        tl.store(block_experts + first_block + start + lane, expert, mask=start + lane < num_blocks)
    if expert == num_experts - 1:
        for start in range(first_block + num_blocks, max_blocks, LANES):
            tl.store(block_experts + start + lane, -1, mask=start + lane < max_blocks)
    filler = count + tl.arange(0, BLOCK_M)
    tl.store(pairs + first_block * BLOCK_M + filler, num_pairs, mask=filler < num_blocks * BLOCK_M)


@triton.jit  # type: ignore[untyped-decorator]
def sort_kernel(
    ids: tl.tensor,
    pairs: tl.tensor,
    block_experts: tl.tensor,
    num_pairs: tl.tensor,
    num_experts: tl.tensor,
    max_blocks: tl.tensor,
    N_PAD: tl.constexpr,
    P_PAD: tl.constexpr,
    BLOCK_M: tl.constexpr,
    PDL: tl.constexpr,
) -> None:
    """Writes one expert's blocks, in the order of its pairs; one program an expert, which reads all pairs."""
    expert = tl.program_id(0)
    experts = tl.arange(0, N_PAD)
    pair = tl.arange(0, P_PAD)
    let_later_start(PDL)
    wait_for_earlier(PDL)
    given = _load_ids(ids, pair, num_pairs, num_experts)
    counts = tl.where(experts < num_experts, tl.histogram(given, N_PAD), 0)
    blocks = (counts + BLOCK_M - 1) // BLOCK_M
    first_block = tl.sum(tl.where(experts < expert, blocks, 0), axis=0)
    count = tl.sum(tl.where(experts == expert, counts, 0), axis=0)
    is_own = (given == expert).to(tl.int32)
    at = first_block * BLOCK_M + tl.cumsum(is_own, axis=0) - 1
    tl.store(pairs + at, pair, mask=is_own == 1)
    _fill_blocks(
        pairs, block_experts, expert, count, first_block, num_pairs, num_experts, max_blocks, N_PAD, BLOCK_M
    )


@triton.jit  # type: ignore[untyped-decorator]
def count_kernel(
    ids: tl.tensor,
    counts: tl.tensor,
    num_pairs: tl.tensor,
    num_experts: tl.tensor,
    num_chunks: tl.tensor,
    N_PAD: tl.constexpr,
    CHUNK: tl.constexpr,
    PDL: tl.constexpr,
) -> None:
    """counts[e, c]: pairs of expert e in chunk c; one program a chunk."""
    chunk = tl.program_id(0)
    experts = tl.arange(0, N_PAD)
    let_later_start(PDL)
    wait_for_earlier(PDL)
    given = _load_ids(ids, chunk * CHUNK + tl.arange(0, CHUNK), num_pairs, num_experts)
    found = tl.histogram(given, N_PAD)
    tl.store(counts + experts * num_chunks + chunk, found, mask=experts < num_experts)


@triton.jit  # type: ignore[untyped-decorator]
def offset_kernel(
    counts: tl.tensor, totals: tl.tensor, num_chunks: tl.tensor, LANES: tl.constexpr, PDL: tl.constexpr
) -> None:
    """counts[e, c] becomes the pairs of e in the chunks before c; totals[e]: all; one program an expert."""
    expert = tl.program_id(0)
    let_later_start(PDL)
    wait_for_earlier(PDL)
    before = 0
    for start in range(0, num_chunks, LANES):
        chunk = start + tl.arange(0, LANES)
        at = counts + expert * num_chunks + chunk
        found = tl.load(at, mask=chunk < num_chunks, other=0)
        tl.store(at, before + tl.cumsum(found, axis=0) - found, mask=chunk < num_chunks)
        before += tl.sum(found, axis=0)
    tl.store(totals + expert, before)


@triton.jit  # type: ignore[untyped-decorator]
def scatter_kernel(
    ids: tl.tensor,
    offsets: tl.tensor,
    totals: tl.tensor,
    pairs: tl.tensor,
    block_experts: tl.tensor,
    num_pairs: tl.tensor,
    num_experts: tl.tensor,
    num_chunks: tl.tensor,
    max_blocks: tl.tensor,
    N_PAD: tl.constexpr,
    CHUNK: tl.constexpr,
    BLOCK_M: tl.constexpr,
    PDL: tl.constexpr,
) -> None:
    """Writes the pairs of a chunk to their places; the programs past the chunks do one expert's filling."""
    chunk = tl.program_id(0)
    experts = tl.arange(0, N_PAD)
    is_expert = experts < num_experts
    let_later_start(PDL)
    wait_for_earlier(PDL)
    counts = tl.load(totals + experts, mask=is_expert, other=0)
    blocks = (counts + BLOCK_M - 1) // BLOCK_M
    if chunk < num_chunks:
        first_rows = (tl.cumsum(blocks, axis=0) - blocks) * BLOCK_M
        first_rows += tl.load(offsets + experts * num_chunks + chunk, mask=is_expert, other=0)
        pair = chunk * CHUNK + tl.arange(0, CHUNK)
        given = _load_ids(ids, pair, num_pairs, num_experts)
        lane = tl.arange(0, CHUNK)
        is_before = (given[:, None] == given[None, :]) & (lane[:, None] > lane[None, :])
        at = tl.gather(first_rows, given, axis=0) + tl.sum(is_before.to(tl.int32), axis=1)
        tl.store(pairs + at, pair, mask=given < num_experts)
    else:
        expert = chunk - num_chunks
        first_block = tl.sum(tl.where(experts < expert, blocks, 0), axis=0)
        count = tl.sum(tl.where(experts == expert, counts, 0), axis=0)
        _fill_blocks(
            pairs,
            block_experts,
            expert,
            count,
            first_block,
            num_pairs,
            num_experts,
            max_blocks,
            N_PAD,
            BLOCK_M,
        )
