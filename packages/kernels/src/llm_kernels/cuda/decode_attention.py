"""Decode attention on Hopper by csrc/cuda/decode: which calls it takes, and how many blocks share a row."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch

from llm_kernels.cuda.library import invalid, native
from llm_kernels.metadata import Arrivals, AttentionMetadata
from llm_kernels.triton.attention_arguments import Arguments, num_processors
from llm_kernels.triton.attention_decode import attend_prefixes, usable_prefix
from llm_kernels.triton.attention_decode import decode as decode_by_triton

HEAD_SIZES = frozenset({64, 128, 256})
"""Those the kernel is compiled for."""
EVEN_HEAD_SIZES = frozenset({128})
"""Those the kernel of even shares is compiled for."""
_LEAST_PROGRAMS_OF_EVEN = 265
_MANY_PROGRAMS_OF_E4M3 = 1024
_WARPS_OF_EVEN = 4
_MAX_GROUP = 16
_OCTET = 8
_KEYS_OF_A_WARP = 16
_E4M3 = torch.float8_e4m3fn

_decode_attention = native("decode_attention")
_decode_attention_even = native("decode_attention_even")


@dataclass(frozen=True, slots=True)
class Shape:
    """How a call is shared out.

    Attributes:
        splits: Blocks of a cluster that share the keys of one row and KV head: 1, 2, 4, 8 or 16.
        warps: Those of a block: 1, 2, 4 or 8.
    """

    splits: int
    warps: int


@dataclass(frozen=True, slots=True)
class EvenShare:
    """How a call is shared out evenly among warps, whatever the lengths of its rows.

    Attributes:
        blocks: Of four warps, of a multiprocessor.
        least_keys: Of a warp's share, a multiple of 16.
    """

    blocks: int
    least_keys: int


# For up to so many programs.
_SHAPES = ((8, Shape(8, 8)), (16, Shape(4, 8)), (64, Shape(2, 8)), (132, Shape(2, 4)), (264, Shape(1, 4)))
_E4M3_SHAPES = (
    (8, Shape(8, 8)),
    (16, Shape(4, 8)),
    (64, Shape(4, 4)),
    (132, Shape(2, 4)),
    (264, Shape(1, 4)),
    (1023, Shape(1, 2)),
)


@lru_cache
def shape_for(num_programs: int, is_e4m3: bool, any_warps: bool) -> Shape | None:
    """What was best on an H200; docs/performance.md has the figures.

    With few rows there are some hundred warps to a row, with many one; in between clusters do not fill the
    processors well.

    Args:
        num_programs: Decode rows times KV heads.
        is_e4m3: Whether the caches are.
        any_warps: Whether blocks may have another number of warps than 4.

    Returns:
        None where the Triton kernel is as quick or quicker.
    """
    if num_programs > 264 and not is_e4m3:
        return None
    shapes = (shape for most, shape in (_E4M3_SHAPES if is_e4m3 else _SHAPES) if num_programs <= most)
    shape = next(shapes, Shape(1, 1))
    if any_warps:
        return shape
    return Shape(min(shape.splits * 2, 16) if shape.warps == 8 else shape.splits, 4)


def even_share_for(a: Arguments, num_rows: int) -> EvenShare | None:
    """Even shares where there are many rows, whose lengths may differ: what was best on an H200.

    Returns:
        None where the kernel does not do the call, or another is quicker.
    """
    num_programs = num_rows * a.keys.shape[2]
    if num_programs < _LEAST_PROGRAMS_OF_EVEN or not takes_evenly(a):
        return None
    is_large = a.keys.dtype == _E4M3 and a.group <= _OCTET and num_programs >= _MANY_PROGRAMS_OF_E4M3
    return EvenShare(blocks=4 if is_large else 2, least_keys=128)


def decode(a: Arguments, metadata: AttentionMetadata) -> None:
    """The leading rows of one token: by the CUDA kernels where they do and are quicker, else by Triton."""
    if usable_prefix(a, metadata) is not None or not takes(a):
        decode_by_triton(a, metadata)
        return
    num_rows = metadata.num_decodes
    share = even_share_for(a, num_rows)
    if share is not None:
        decode_evenly(a, metadata, share)
        return
    any_warps = a.query.dtype == torch.bfloat16 and a.query.shape[2] == 128 and a.group <= _OCTET
    shape = shape_for(num_rows * a.keys.shape[2], a.keys.dtype == _E4M3, any_warps)
    if shape is None:
        decode_by_triton(a, metadata)
    else:
        decode_rows(a, metadata, shape)


def takes(a: Arguments) -> bool:
    """Whether the kernel does this call: 16-bit floats, or e4m3 caches, its head sizes, aligned addresses."""
    head_size = a.query.shape[2]
    return (
        head_size in HEAD_SIZES
        and a.values.shape[3] == head_size
        and a.query.dtype in (torch.bfloat16, torch.float16)
        and a.keys.dtype == a.values.dtype
        and a.keys.dtype in (a.query.dtype, _E4M3)
        and a.group <= _MAX_GROUP
        and a.keys.shape[1] % _KEYS_OF_A_WARP == 0
        and a.alibi_slopes is None
        and _is_aligned(a.keys, 16)
        and _is_aligned(a.values, 16)
        and _is_aligned(a.query, 4)
    )


def takes_evenly(a: Arguments) -> bool:
    """Whether the kernel of even shares does this call: bfloat16 at its head sizes, else as `takes`."""
    return takes(a) and a.query.dtype == torch.bfloat16 and a.query.shape[2] in EVEN_HEAD_SIZES


def decode_rows(a: Arguments, metadata: AttentionMetadata, shape: Shape) -> None:
    """The leading rows of one token.

    Args:
        a: Of a call that the kernel takes.
        metadata: The rows. Lengths are read on the device; the grid follows from the shapes.
        shape: How it is shared out. Blocks of another number of warps than 4 are for bfloat16 at head size
            128 and up to 8 heads a KV head.

    Raises:
        InvalidArgument: A tensor's shape, dtype or alignment does not fit the kernel.
    """
    prefix_lens, partial, state = _prefix(a, metadata)
    try:
        _decode_attention(
            a.out,
            a.query,
            a.keys,
            a.values,
            a.key_scale,
            a.value_scale,
            metadata.context_lens,
            metadata.block_tables,
            None if a.sinks is None else a.sinks.float(),
            prefix_lens,
            partial,
            state,
            metadata.num_decodes,
            a.scale,
            a.soft_cap or 0.0,
            a.sliding_window or 0,
            a.chunk or 0,
            shape.splits,
            shape.warps,
        )
    except ValueError as error:
        raise invalid(error) from None


def decode_evenly(a: Arguments, metadata: AttentionMetadata, share: EvenShare) -> None:
    """The leading rows of one token in even shares of all their keys.

    Args:
        a: Of a call that `takes_evenly` takes.
        metadata: The rows. Lengths are read on the device; the grids follow from the device and `share`.
        share: How it is shared out.

    Raises:
        InvalidArgument: A tensor's shape, dtype or alignment does not fit the kernel.
    """
    device = a.query.device
    num_blocks = share.blocks * num_processors(device)
    num_warps = num_blocks * _WARPS_OF_EVEN
    prefix_lens, partial, state = _prefix(a, metadata)
    octets = 1 if a.group <= _OCTET else 2
    parts = torch.empty((num_warps, octets * (8 * a.query.shape[2] + 16)), dtype=torch.float32, device=device)
    try:
        _decode_attention_even(
            a.out,
            a.query,
            a.keys,
            a.values,
            a.key_scale,
            a.value_scale,
            metadata.context_lens,
            metadata.block_tables,
            None if a.sinks is None else a.sinks.float(),
            prefix_lens,
            partial,
            state,
            parts,
            _arrivals(metadata, num_warps, device),
            metadata.num_decodes,
            a.scale,
            a.soft_cap or 0.0,
            a.sliding_window or 0,
            a.chunk or 0,
            num_blocks,
            share.least_keys // _KEYS_OF_A_WARP,
        )
    except ValueError as error:
        raise invalid(error) from None


def _arrivals(metadata: AttentionMetadata, num_warps: int, device: torch.device) -> torch.Tensor:
    """A flag a warp, made once for these rows; a graph that uses them sets them to zero itself."""
    is_captured = torch.cuda.is_current_stream_capturing()
    found = metadata.arrivals
    if found is None or found.is_captured != is_captured or found.flags.numel() < num_warps:
        flags = torch.zeros(num_warps, dtype=torch.int32, device=device)
        found = metadata.arrivals = Arrivals(flags, is_captured)
    return found.flags[:num_warps]


def _prefix(
    a: Arguments, metadata: AttentionMetadata
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor] | tuple[None, None, None]:
    """The lengths of shared prefixes, sums over them and their states; None where none are to be used."""
    shared = usable_prefix(a, metadata)
    if shared is None:
        return None, None, None
    return shared.prefix_lens, *attend_prefixes(a, metadata, shared)


def _is_aligned(x: torch.Tensor, num_bytes: int) -> bool:
    """Whether all rows begin at multiples of so many bytes."""
    strides = (stride for stride, size in zip(x.stride()[:-1], x.shape[:-1], strict=True) if size > 1)
    return x.data_ptr() % num_bytes == 0 and all(s * x.element_size() % num_bytes == 0 for s in strides)
