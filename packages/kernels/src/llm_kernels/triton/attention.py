"""Launches paged attention in Triton: tile sizes, number of splits, grids. The device code is beside it.

Grids and tile sizes follow from host integers alone, so that a launch can be captured in a graph.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
import triton

from llm_kernels.checks import check_attention, check_inner_contiguous, check_scoring
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


@lru_cache
def decode_tile(dtype: torch.dtype, head_size: int, group: int) -> Tile:
    """Tile of the decode kernel: all grouped heads of one token."""
    block_m = max(16, triton.next_power_of_2(group))
    padded = triton.next_power_of_2(head_size)
    if dtype == torch.float32:
        return Tile(block_m=block_m, block_n=32 if padded <= 128 else 16, num_warps=4, num_stages=2)
    return Tile(block_m=block_m, block_n=64 if padded <= 128 else 32, num_warps=4, num_stages=3)


@lru_cache
def prefill_tile(dtype: torch.dtype, head_size: int, group: int) -> Tile:
    """Tile of the prefill kernel: a block of query tokens times the grouped heads."""
    least = triton.next_power_of_2(group)
    padded = triton.next_power_of_2(head_size)
    if dtype == torch.float32:
        return Tile(block_m=max(32, least), block_n=32 if padded <= 128 else 16, num_warps=4, num_stages=2)
    # The best of eleven tiles on an H200 (docs/performance.md): 319 TFLOP/s at head size 128, 183 at 64.
    if padded <= 64:
        return Tile(block_m=max(64, least), block_n=64, num_warps=4, num_stages=3)
    if padded <= 128:
        return Tile(block_m=max(128, least), block_n=128, num_warps=8, num_stages=3)
    return Tile(block_m=max(64, least), block_n=32, num_warps=8, num_stages=2)


@lru_cache
def _num_processors(device: torch.device) -> int:
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
    out_THD: torch.Tensor,
    query_THD: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    metadata: AttentionMetadata,
    scale: float,
    sliding_window: int | None,
    soft_cap: float | None,
    *_features: object,
) -> None:
    """Triton back end of `ops.paged_attention`; the registry keeps calls with features away."""
    check_attention(out_THD, query_THD, key_cache, value_cache, metadata)
    check_scoring(query_THD, sliding_window, soft_cap)
    check_inner_contiguous(
        out_THD=out_THD,
        query_THD=query_THD,
        key_cache=key_cache,
        value_cache=value_cache,
        block_tables=metadata.block_tables,
        context_lens=metadata.context_lens,
        cu_query_lens=metadata.cu_query_lens,
    )
    arguments = _Arguments(
        out_THD, query_THD, key_cache, value_cache, metadata, scale, sliding_window, soft_cap
    )
    if metadata.num_decodes > 0:
        _decode(arguments)
    if metadata.context_lens.numel() > metadata.num_decodes:
        _prefill(arguments)


@dataclass(frozen=True, slots=True)
class _Arguments:
    """The arguments of one call, and the forms the kernels take them in."""

    out: torch.Tensor
    query: torch.Tensor
    key_cache: torch.Tensor
    value_cache: torch.Tensor
    metadata: AttentionMetadata
    scale: float
    sliding_window: int | None
    soft_cap: float | None

    @property
    def group(self) -> int:
        return self.query.shape[1] // self.key_cache.shape[2]

    def strides(self) -> tuple[int, ...]:
        """Strides in the order of the kernels' signatures."""
        return (
            *self.out.stride()[:2],
            *self.query.stride()[:2],
            *self.key_cache.stride()[:3],
            *self.value_cache.stride()[:3],
            self.metadata.block_tables.stride(0),
        )

    def scores(self) -> tuple[float, float, int]:
        """Scale, soft cap and window; the stand-ins for None are not read."""
        return self.scale, float(self.soft_cap or 1.0), self.sliding_window or 0

    def constants(self, tile: Tile) -> dict[str, Any]:
        """The compile-time arguments both kernels share."""
        head_size = self.query.shape[2]
        return {
            "GROUP": self.group,
            "D": head_size,
            "D_PAD": triton.next_power_of_2(head_size),
            "BLOCK_M": tile.block_m,
            "BLOCK_N": tile.block_n,
            "BLOCK_SIZE": self.key_cache.shape[1],
            "HAS_WINDOW": self.sliding_window is not None,
            "HAS_SOFT_CAP": self.soft_cap is not None,
            # TF32 keeps ten bits of a float32; the flag means nothing for the half types.
            "PRECISION": "ieee" if self.query.dtype == torch.float32 else "tf32",
            "num_warps": tile.num_warps,
            "num_stages": tile.num_stages,
        }


def _decode(a: _Arguments) -> None:
    num_rows, num_kv_heads = a.metadata.num_decodes, a.key_cache.shape[2]
    num_heads, head_size = a.query.shape[1:]
    splits = num_splits(num_rows * num_kv_heads, a.metadata.max_context_len, _num_processors(a.query.device))
    partial = state = a.out
    if splits > 1:
        shape = (num_rows, num_heads, splits)
        partial = torch.empty((*shape, head_size), dtype=torch.float32, device=a.query.device)
        state = torch.empty(shape, dtype=torch.float32, device=a.query.device)
    decode_kernel[(num_rows, num_kv_heads, splits)](
        a.out,
        partial,
        state,
        a.query,
        a.key_cache,
        a.value_cache,
        a.metadata.context_lens,
        a.metadata.block_tables,
        *a.strides(),
        splits,
        *a.scores(),
        IS_SPLIT=splits > 1,
        **a.constants(decode_tile(a.query.dtype, head_size, a.group)),
    )
    if splits > 1:
        combine_kernel[(num_rows, num_heads)](
            a.out,
            partial,
            state,
            *a.out.stride()[:2],
            splits,
            D=head_size,
            D_PAD=triton.next_power_of_2(head_size),
            SPLITS=triton.next_power_of_2(splits),
            num_warps=4,
        )


def _prefill(a: _Arguments) -> None:
    first_row = a.metadata.num_decodes
    num_rows = a.metadata.context_lens.numel() - first_row
    tile = prefill_tile(a.query.dtype, a.query.shape[2], a.group)
    block_q = tile.block_m // a.group
    num_tokens = a.query.shape[0] - first_row
    prefill_kernel[(num_tokens // block_q + num_rows, a.key_cache.shape[2])](
        a.out,
        a.query,
        a.key_cache,
        a.value_cache,
        a.metadata.cu_query_lens,
        a.metadata.context_lens,
        a.metadata.block_tables,
        *a.strides(),
        first_row,
        num_rows,
        *a.scores(),
        BLOCK_Q=block_q,
        **a.constants(tile),
    )
