"""Launches paged and packed attention in Triton: tiles, splits of keys, grids. The device code is beside it.

Grids and tile sizes follow from host integers alone, so that a launch can be captured in a graph.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
import triton

from llm_kernels.checks import check_attention, check_inner_contiguous, check_scoring, check_varlen
from llm_kernels.metadata import AttentionMetadata
from llm_kernels.triton.attention_kernels import combine_kernel, decode_kernel, prefill_kernel

_MIN_KEYS_PER_SPLIT = 256
_MAX_SPLITS = 64
_PROGRAMS_PER_PROCESSOR = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Tile:
    """Sizes of one launch: rows (query tokens times grouped heads), keys, and how it is pipelined."""

    block_m: int
    block_n: int
    num_warps: int
    num_stages: int


def padded(size: int) -> int:
    """The extent of a tile that holds `size` columns; the least a matrix product takes is 16."""
    return max(16, int(triton.next_power_of_2(size)))


def precision(dtype: torch.dtype) -> str:
    """How matrix products are taken: TF32 keeps ten bits of a float32. Half types do not heed it."""
    return "ieee" if dtype == torch.float32 else "tf32"


@lru_cache
def decode_tile(dtype: torch.dtype, head_size: int, group: int) -> Tile:
    """Tile of the decode kernel: all grouped heads of one token."""
    block_m = max(16, triton.next_power_of_2(group))
    width = padded(head_size)
    if dtype == torch.float32:
        return Tile(block_m=block_m, block_n=32 if width <= 128 else 16, num_warps=4, num_stages=2)
    return Tile(block_m=block_m, block_n=64 if width <= 128 else 32, num_warps=4, num_stages=3)


@lru_cache
def prefill_tile(dtype: torch.dtype, head_size: int, group: int) -> Tile:
    """Tile of the prefill kernel: a block of query tokens times the grouped heads."""
    least = triton.next_power_of_2(group)
    width = padded(head_size)
    if dtype == torch.float32:
        return Tile(block_m=max(32, least), block_n=32 if width <= 128 else 16, num_warps=4, num_stages=2)
    # The best of eleven tiles on an H200 (docs/performance.md): 319 TFLOP/s at head size 128, 183 at 64.
    if width <= 64:
        return Tile(block_m=max(64, least), block_n=64, num_warps=4, num_stages=3)
    if width <= 128:
        return Tile(block_m=max(128, least), block_n=128, num_warps=8, num_stages=3)
    return Tile(block_m=max(64, least), block_n=32, num_warps=8, num_stages=2)


@lru_cache
def num_processors(device: torch.device) -> int:
    """Streaming multiprocessors of a GPU; a few for the interpreter, so that splits are exercised."""
    if device.type != "cuda":
        return 8
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


def num_splits(num_programs: int, max_context: int, num_processors: int) -> int:
    """Runs of keys per row so that decode programs fill the processors; 1 when they do so anyway.

    Args:
        num_programs: Decode rows times KV heads.
        max_context: Upper bound of the context lengths.
        num_processors: Multiprocessors of the device.
    """
    wanted = triton.cdiv(num_processors * _PROGRAMS_PER_PROCESSOR, max(num_programs, 1))
    return max(1, min(int(wanted), max_context // _MIN_KEYS_PER_SPLIT, _MAX_SPLITS))


def paged_attention(
    out_THV: torch.Tensor,
    query_THD: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    metadata: AttentionMetadata,
    scale: float,
    sliding_window: int | None,
    soft_cap: float | None,
    chunk: int | None,
    sinks: torch.Tensor | None,
    alibi_slopes: torch.Tensor | None,
    causal: bool,
) -> None:
    """Triton back end of `ops.paged_attention`."""
    check_attention(out_THV, query_THD, key_cache, value_cache, metadata)
    check_scoring(query_THD, sliding_window, soft_cap, chunk, sinks, alibi_slopes, causal)
    check_inner_contiguous(
        out_THV=out_THV,
        query_THD=query_THD,
        key_cache=key_cache,
        value_cache=value_cache,
        block_tables=metadata.block_tables,
        context_lens=metadata.context_lens,
        cu_query_lens=metadata.cu_query_lens,
    )
    arguments = _Arguments(
        out=out_THV,
        query=query_THD,
        keys=key_cache,
        values=value_cache,
        scale=scale,
        sliding_window=sliding_window,
        soft_cap=soft_cap,
        chunk=chunk,
        sinks=sinks,
        alibi_slopes=alibi_slopes,
        causal=causal,
    )
    num_rows, num_decodes = metadata.context_lens.numel(), metadata.num_decodes
    if num_decodes > 0:
        _decode(arguments, metadata)
    if num_rows > num_decodes:
        _prefill(
            arguments,
            metadata.cu_query_lens,
            metadata.context_lens,
            metadata.block_tables,
            num_decodes,
            num_rows - num_decodes,
        )


def varlen_attention(
    out_THV: torch.Tensor,
    query_THD: torch.Tensor,
    key_SKD: torch.Tensor,
    value_SKV: torch.Tensor,
    cu_query_lens: torch.Tensor,
    cu_key_lens: torch.Tensor,
    _max_query_len: int,
    _max_key_len: int,
    scale: float,
    causal: bool,
    sliding_window: int | None,
    soft_cap: float | None,
    alibi_slopes: torch.Tensor | None,
    _bias: object,
) -> None:
    """Triton back end of `ops.varlen_attention`; the registry keeps calls with a bias away."""
    check_varlen(out_THV, query_THD, key_SKD, value_SKV, cu_query_lens, cu_key_lens)
    check_scoring(query_THD, sliding_window, soft_cap, alibi_slopes=alibi_slopes)
    check_inner_contiguous(
        out_THV=out_THV,
        query_THD=query_THD,
        key_SKD=key_SKD,
        value_SKV=value_SKV,
        cu_query_lens=cu_query_lens,
        cu_key_lens=cu_key_lens,
    )
    arguments = _Arguments(
        out=out_THV,
        query=query_THD,
        keys=key_SKD.unsqueeze(0),
        values=value_SKV.unsqueeze(0),
        scale=scale,
        sliding_window=sliding_window,
        soft_cap=soft_cap,
        chunk=None,
        sinks=None,
        alibi_slopes=alibi_slopes,
        causal=causal,
    )
    num_rows = cu_query_lens.numel() - 1
    if num_rows > 0:
        _prefill(arguments, cu_query_lens, cu_key_lens, None, 0, num_rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Arguments:
    """The arguments of one call, and the forms the kernels take them in."""

    out: torch.Tensor
    query: torch.Tensor
    keys: torch.Tensor
    values: torch.Tensor
    scale: float
    sliding_window: int | None
    soft_cap: float | None
    chunk: int | None
    sinks: torch.Tensor | None
    alibi_slopes: torch.Tensor | None
    causal: bool

    @property
    def group(self) -> int:
        return self.query.shape[1] // self.keys.shape[2]

    @property
    def widest(self) -> int:
        return max(self.query.shape[2], self.values.shape[3])

    def per_head(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Sinks and ALiBi slopes; the stand-ins for None are not read."""
        return (
            self.out if self.sinks is None else self.sinks,
            self.out if self.alibi_slopes is None else self.alibi_slopes,
        )

    def strides(self) -> tuple[int, ...]:
        """Strides in the order of the kernels' signatures, but that of the block tables."""
        return (
            *self.out.stride()[:2],
            *self.query.stride()[:2],
            *self.keys.stride()[:3],
            *self.values.stride()[:3],
        )

    def scores(self) -> tuple[float, float, int, int]:
        """Scale, soft cap, window and chunk; the stand-ins for None are not read."""
        return self.scale, float(self.soft_cap or 1.0), self.sliding_window or 0, self.chunk or 0

    def constants(self, tile: Tile) -> dict[str, Any]:
        """The compile-time arguments both kernels share."""
        head_size, value_size = self.query.shape[2], self.values.shape[3]
        return {
            "GROUP": self.group,
            "D": head_size,
            "D_PAD": padded(head_size),
            "V": value_size,
            "V_PAD": padded(value_size),
            "BLOCK_M": tile.block_m,
            "BLOCK_N": tile.block_n,
            "BLOCK_SIZE": self.keys.shape[1],
            "HAS_WINDOW": self.sliding_window is not None,
            "HAS_CHUNK": self.chunk is not None,
            "HAS_SOFT_CAP": self.soft_cap is not None,
            "HAS_SINKS": self.sinks is not None,
            "HAS_ALIBI": self.alibi_slopes is not None,
            "PRECISION": precision(self.query.dtype),
            "num_warps": tile.num_warps,
            "num_stages": tile.num_stages,
        }


def _decode(a: _Arguments, metadata: AttentionMetadata) -> None:
    num_rows, num_kv_heads = metadata.num_decodes, a.keys.shape[2]
    reach = metadata.max_context_len
    for limit in (a.sliding_window, a.chunk):
        reach = reach if limit is None else min(reach, limit)
    splits = num_splits(num_rows * num_kv_heads, reach, num_processors(a.query.device))
    partial, state = partials(a.out, num_rows, splits)
    decode_kernel[(num_rows, num_kv_heads, splits)](
        a.out,
        partial,
        state,
        a.query,
        a.keys,
        a.values,
        metadata.context_lens,
        metadata.block_tables,
        *a.per_head(),
        *a.strides(),
        metadata.block_tables.stride(0),
        splits,
        *a.scores(),
        IS_SPLIT=splits > 1,
        **a.constants(decode_tile(a.query.dtype, a.widest, a.group)),
    )
    if splits > 1:
        combine(a.out, partial, state, splits)


def partials(out_THV: torch.Tensor, num_rows: int, splits: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Room for the sums and states of each split; with one split a stand-in that is not written."""
    if splits == 1:
        return out_THV, out_THV
    num_heads, value_size = out_THV.shape[1:]
    shape = (num_rows, num_heads, splits)
    return (
        torch.empty((*shape, value_size), dtype=torch.float32, device=out_THV.device),
        torch.empty(shape, dtype=torch.float32, device=out_THV.device),
    )


def combine(out_THV: torch.Tensor, partial: torch.Tensor, state: torch.Tensor, splits: int) -> None:
    """Adds up the splits of the first rows of `out_THV`."""
    num_rows, num_heads = state.shape[:2]
    value_size = out_THV.shape[2]
    block = min(padded(value_size), 256)
    combine_kernel[(num_rows, num_heads, triton.cdiv(value_size, block))](
        out_THV,
        partial,
        state,
        *out_THV.stride()[:2],
        splits,
        V=value_size,
        BLOCK_V=block,
        SPLITS=triton.next_power_of_2(splits),
        num_warps=4,
    )


def _prefill(
    a: _Arguments,
    cu_query_lens: torch.Tensor,
    context_lens: torch.Tensor,
    block_tables: torch.Tensor | None,
    first_row: int,
    num_rows: int,
) -> None:
    """The rows from `first_row` on, each of whose earlier rows is one token."""
    tile = prefill_tile(a.query.dtype, a.widest, a.group)
    block_q = tile.block_m // a.group
    num_tokens = a.query.shape[0] - first_row
    constants = a.constants(tile)
    if block_tables is None:
        constants["BLOCK_SIZE"] = 1  # not the number of keys, for each of which there would be a kernel
    prefill_kernel[(num_tokens // block_q + num_rows, a.keys.shape[2])](
        a.out,
        a.query,
        a.keys,
        a.values,
        cu_query_lens,
        context_lens,
        cu_query_lens if block_tables is None else block_tables,
        *a.per_head(),
        *a.strides(),
        0 if block_tables is None else block_tables.stride(0),
        first_row,
        num_rows,
        *a.scores(),
        BLOCK_Q=block_q,
        IS_PAGED=block_tables is not None,
        IS_CAUSAL=a.causal,
        **constants,
    )
