"""Launches decode attention in Triton: splits of the keys, the pass over shared prefixes, the combination.

Grids and tile sizes follow from shapes alone, never from a bound of the lengths, so that one captured launch
serves every length.
"""

from __future__ import annotations

from functools import lru_cache

import torch

from llm_kernels.metadata import AttentionMetadata, SharedPrefix
from llm_kernels.triton.attention_arguments import Arguments, Tile, num_processors, padded
from llm_kernels.triton.attention_decode_kernels import combine_kernel, decode_kernel, prefix_kernel
from llm_kernels.triton.dependent_launch import launch_options
from llm_kernels.triton.launch_sizes import ceil_div, power_of_2

LEAST_KEYS_PER_SPLIT = 128
_MAX_SPLITS = 64
_MAX_PREFIX_PARTS = 16
# Programs that a multiprocessor runs side by side, and how many rounds of them splits may make.
_PROGRAMS_PER_PROCESSOR = 4
_MAX_ROUNDS = 3
# From so many programs on, those of one warp fill the device best (docs/performance.md).
_MANY_PROGRAMS = 1024
# Between that and so many, halves of rows are better: all programs run at once, and rows of unequal lengths
# leave processors idle. On an H200, 192 and 256 rows of 100 to 2,048 tokens gained 4 to 11 %; of rows of one
# length, 192 gained and 256 lost 5 %.
_MOST_HALVED = 4096
# A number of splits is good enough when no other saves more than this share of the time.
_TOLERANCE = 1.1


@lru_cache
def decode_tile(dtype: torch.dtype, head_size: int, group: int, num_programs: int) -> Tile:
    """Tile of the decode kernel: all grouped heads of one token."""
    block_m = max(16, power_of_2(group))
    width = padded(head_size)
    if width == 128 and block_m == 16 and dtype != torch.float32 and num_programs >= _MANY_PROGRAMS:
        return Tile(block_m=block_m, block_n=32, num_warps=1, num_stages=3)
    if dtype == torch.float32:
        return Tile(block_m=block_m, block_n=32 if width <= 128 else 16, num_warps=4, num_stages=2)
    return Tile(block_m=block_m, block_n=64 if width <= 128 else 32, num_warps=4, num_stages=3)


@lru_cache
def prefix_tile(dtype: torch.dtype, head_size: int, group: int, num_rows: int) -> Tile:
    """Tile of the pass over a shared prefix: rows times their grouped heads."""
    width = padded(head_size)
    wanted = max(power_of_2(group * num_rows), 16)
    least = max(16, power_of_2(group))
    if dtype == torch.float32:
        return Tile(
            block_m=max(least, min(wanted, 32)),
            block_n=32 if width <= 128 else 16,
            num_warps=4,
            num_stages=2,
        )
    if width > 128:
        return Tile(block_m=max(least, min(wanted, 64)), block_n=32, num_warps=8, num_stages=2)
    if wanted <= 64:
        return Tile(block_m=max(least, wanted), block_n=64, num_warps=4, num_stages=3)
    return Tile(block_m=max(least, 128), block_n=64, num_warps=8, num_stages=3)


@lru_cache
def num_splits(num_programs: int, num_processors: int) -> int:
    """Runs of keys per row so that decode programs fill the processors; 1 when they do so anyway.

    Programs run in rounds, each as long as a split: of the numbers that make few rounds, the least with
    nearly the shortest time.

    Args:
        num_programs: Decode rows times KV heads.
        num_processors: Multiprocessors of the device.
    """
    at_once = num_processors * _PROGRAMS_PER_PROCESSOR
    most = max(1, min(_MAX_SPLITS, _MAX_ROUNDS * at_once // max(num_programs, 1)))
    costs = [ceil_div(num_programs * splits, at_once) / splits for splits in range(1, most + 1)]
    least = min(costs)
    return 1 + next(index for index, cost in enumerate(costs) if cost <= _TOLERANCE * least)


def decode(a: Arguments, metadata: AttentionMetadata) -> None:
    """The leading rows of one token: `metadata.num_decodes` of them, row r being token r."""
    num_rows, num_kv_heads = metadata.num_decodes, a.keys.shape[2]
    splits = num_splits(num_rows * num_kv_heads, num_processors(a.query.device))
    if _MANY_PROGRAMS < num_rows * num_kv_heads <= _MOST_HALVED:
        splits = max(splits, 2)
    shared = usable_prefix(a, metadata)
    tile = decode_tile(a.query.dtype, a.widest, a.group, num_rows * num_kv_heads)
    own_parts = splits if splits > 1 else 0
    if shared is None:
        partial, state = partials(a.out, num_rows, own_parts)
        num_parts, prefix_parts = own_parts, 0
    else:
        partial, state = attend_prefixes(a, metadata, shared, own_parts)
        num_parts = state.shape[2]
        prefix_parts = num_parts - own_parts
    least_blocks = ceil_div(LEAST_KEYS_PER_SPLIT, tile.block_n)
    prefix_lens = metadata.context_lens if shared is None else shared.prefix_lens
    decode_kernel[(num_rows, num_kv_heads, splits)](
        a.out,
        partial,
        state,
        a.query,
        a.keys,
        a.values,
        metadata.context_lens,
        prefix_lens,
        metadata.block_tables,
        *a.per_head(),
        *a.strides(),
        metadata.block_tables.stride(0),
        prefix_parts,
        num_parts,
        splits,
        *a.scores(),
        LEAST_BLOCKS=least_blocks,
        HAS_PREFIX=shared is not None,
        IS_SPLIT=splits > 1,
        **a.constants(tile),
        **launch_options(a.query.device),
    )
    if splits > 1:
        combine(
            a.out,
            partial,
            state,
            metadata.context_lens,
            tile.block_n,
            least_blocks,
            splits,
            prefix_parts=prefix_parts,
            prefix_lens=None if shared is None else shared.prefix_lens,
            sliding_window=a.sliding_window,
            chunk=a.chunk,
        )


def partials(out_THV: torch.Tensor, num_rows: int, parts: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Room for the sums and states of each part; stand-ins that are not written where there are none."""
    if parts == 0:
        return out_THV, out_THV
    num_heads, value_size = out_THV.shape[1:]
    shape = (num_rows, num_heads, parts)
    return (
        torch.empty((*shape, value_size), dtype=torch.float32, device=out_THV.device),
        torch.empty(shape, dtype=torch.float32, device=out_THV.device),
    )


def combine(
    out_THV: torch.Tensor,
    partial: torch.Tensor,
    state: torch.Tensor,
    context_lens: torch.Tensor,
    block_n: int,
    least_blocks: int,
    splits: int,
    *,
    prefix_parts: int = 0,
    prefix_lens: torch.Tensor | None = None,
    sliding_window: int | None = None,
    chunk: int | None = None,
) -> None:
    """Adds up the parts of the first rows of `out_THV`.

    Args:
        out_THV: [T, H, V].
        partial: float32 [rows, H, parts, V], normalised sums.
        state: float32 [rows, H, parts], their log2 weights.
        context_lens: int32 [R], from which follows how many splits were used.
        block_n: Keys of a tile in the decode kernel.
        least_blocks: Least tiles of a split there.
        splits: Splits of the keys; the parts are those of the prefix and these.
        prefix_parts: Parts of a shared prefix.
        prefix_lens: int32 [rows], the keys they cover; None: there are none.
        sliding_window: As in the decode kernel.
        chunk: Same.
    """
    num_rows, num_heads = state.shape[:2]
    value_size = out_THV.shape[2]
    block = min(padded(value_size), 256)
    combine_kernel[(num_rows, num_heads, ceil_div(value_size, block))](
        out_THV,
        partial,
        state,
        context_lens,
        context_lens if prefix_lens is None else prefix_lens,
        *out_THV.stride()[:2],
        prefix_parts,
        splits,
        block_n,
        least_blocks,
        sliding_window or 0,
        chunk or 0,
        V=value_size,
        BLOCK_V=block,
        PARTS=power_of_2(prefix_parts + splits),
        HAS_WINDOW=sliding_window is not None,
        HAS_CHUNK=chunk is not None,
        HAS_PREFIX=prefix_lens is not None,
        num_warps=4,
        **launch_options(out_THV.device),
    )


def usable_prefix(a: Arguments, metadata: AttentionMetadata) -> SharedPrefix | None:
    """The shared prefixes of a call; None where there are none, or a window moves on within them."""
    return metadata.shared_prefix if a.sliding_window is None and a.chunk is None and a.causal else None


def attend_prefixes(
    a: Arguments, metadata: AttentionMetadata, shared: SharedPrefix, further_parts: int = 0
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention of the groups' rows over the keys they share, without sinks, in parts.

    Args:
        a: The call.
        metadata: Its rows.
        shared: Their groups.
        further_parts: Room to leave behind the parts of each row and head.

    Returns:
        Normalised sums float32 [rows, H, parts + further parts, V], and the log2 of their weights float32
        [rows, H, parts + further parts]. Of rows in no group nothing is written.
    """
    num_rows = metadata.num_decodes
    tile = prefix_tile(a.query.dtype, a.widest, a.group, num_rows)
    prefix_parts = _num_prefix_parts(a, num_rows, tile)
    partial, state = partials(a.out, num_rows, prefix_parts + further_parts)
    _launch_prefixes(a, metadata, shared, tile, partial, state, prefix_parts)
    return partial, state


def _num_prefix_parts(a: Arguments, num_rows: int, tile: Tile) -> int:
    """Runs of the shared keys so that the programs of one group of all rows fill the processors."""
    tiles = -(-num_rows // (tile.block_m // a.group)) * a.keys.shape[2]
    return max(1, min(num_processors(a.query.device) // tiles, _MAX_PREFIX_PARTS))


def _launch_prefixes(
    a: Arguments,
    metadata: AttentionMetadata,
    shared: SharedPrefix,
    tile: Tile,
    partial: torch.Tensor,
    state: torch.Tensor,
    prefix_parts: int,
) -> None:
    block_q = tile.block_m // a.group
    num_groups = shared.group_lens.numel()
    constants = a.constants(tile)
    for name in ("HAS_WINDOW", "HAS_CHUNK", "HAS_SINKS"):
        del constants[name]
    _, slopes, key_scale, value_scale = a.per_head()
    scale, soft_cap, _, _ = a.scores()
    prefix_kernel[(metadata.num_decodes // block_q + num_groups, a.keys.shape[2], prefix_parts)](
        partial,
        state,
        a.query,
        a.keys,
        a.values,
        metadata.context_lens,
        metadata.block_tables,
        shared.member_rows,
        shared.cu_members,
        shared.group_lens,
        slopes,
        key_scale,
        value_scale,
        *a.strides()[2:],
        metadata.block_tables.stride(0),
        num_groups,
        prefix_parts,
        state.shape[2],
        scale,
        soft_cap,
        BLOCK_Q=block_q,
        GROUPS=power_of_2(num_groups),
        **constants,
        **launch_options(a.query.device),
    )
