"""Paged attention on Hopper: by csrc/cuda/attention and csrc/cuda/decode, and what they leave by Triton."""

from __future__ import annotations

import torch

from llm_kernels.checks import (
    check_attention,
    check_cache_scales,
    check_inner_contiguous,
    check_scoring,
    check_shared_prefix,
)
from llm_kernels.cuda.decode_attention import decode
from llm_kernels.cuda.library import invalid, native
from llm_kernels.metadata import AttentionMetadata
from llm_kernels.triton.attention import prefill
from llm_kernels.triton.attention_arguments import Arguments, num_processors

HEAD_SIZES = frozenset({64, 80, 96, 128, 192, 256})
"""Those the prefill kernel is compiled for."""
_MAX_GROUP = 64
_E4M3 = torch.float8_e4m3fn

_prefill_attention = native("prefill_attention")


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
    _distance_bias: None = None,
    key_scale: torch.Tensor | None = None,
    value_scale: torch.Tensor | None = None,
) -> None:
    """CUDA back end of `ops.paged_attention`; the registry keeps slopes and other value sizes away."""
    check_attention(out_THV, query_THD, key_cache, value_cache, metadata)
    check_scoring(query_THD, sliding_window, soft_cap, chunk, sinks, alibi_slopes, causal)
    check_cache_scales(key_cache, key_scale, value_scale)
    arguments = Arguments(
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
        key_scale=key_scale,
        value_scale=value_scale,
    )
    num_rows, num_decodes = metadata.context_lens.numel(), metadata.num_decodes
    is_taken = num_rows > num_decodes and _takes(arguments)
    if num_decodes > 0 or not is_taken:  # Else the binding checks what Triton would not.
        _check_for_triton(arguments, metadata)
    if num_decodes > 0:
        decode(arguments, metadata)
    if num_rows == num_decodes:
        return
    if is_taken:
        prefill_rows(arguments, metadata)
    else:
        prefill(
            arguments,
            metadata.cu_query_lens,
            metadata.context_lens,
            metadata.block_tables,
            num_decodes,
            num_rows - num_decodes,
        )


def prefill_rows(
    a: Arguments,
    metadata: AttentionMetadata,
    log_sum_exp_HT: torch.Tensor | None = None,
) -> None:
    """The rows past the decode rows, in one launch of the CUDA kernel.

    Args:
        a: Of a call that the kernel takes: bfloat16 or float16, a head size of `HEAD_SIZES`, caches of the
            same dtype or float8_e4m3fn.
        metadata: The rows. Lengths are read on the device; the grid follows from the shapes.
        log_sum_exp_HT: float32 [H, T]; gets the natural logarithm of each softmax's denominator, sinks
            included, -inf where a query sees no key.

    Raises:
        InvalidArgument: A tensor's dtype, size or alignment does not fit the kernel.
    """
    counter = torch.empty(1, dtype=torch.int32, device=a.query.device)
    try:
        _prefill_attention(
            a.out,
            a.query,
            a.keys,
            a.values,
            a.key_scale,
            a.value_scale,
            metadata.cu_query_lens,
            metadata.context_lens,
            metadata.block_tables,
            None if a.sinks is None else a.sinks.float(),
            log_sum_exp_HT,
            counter,
            metadata.num_decodes,
            a.scale,
            a.soft_cap or 0.0,
            a.sliding_window or 0,
            a.chunk or 0,
            a.causal,
            num_processors(a.query.device),
        )
    except ValueError as error:
        raise invalid(error) from None


def _check_for_triton(a: Arguments, metadata: AttentionMetadata) -> None:
    check_shared_prefix(metadata, a.query.device)
    check_inner_contiguous(
        out_THV=a.out,
        query_THD=a.query,
        key_cache=a.keys,
        value_cache=a.values,
        block_tables=metadata.block_tables,
        context_lens=metadata.context_lens,
        cu_query_lens=metadata.cu_query_lens,
    )


def _takes(a: Arguments) -> bool:
    """Whether the kernel does this call: one dtype, sizes and addresses that the copy engine reads."""
    head_size = a.query.shape[2]
    return (
        head_size in HEAD_SIZES
        and a.values.shape[3] == head_size
        and a.alibi_slopes is None
        and a.scale > 0
        and a.group <= _MAX_GROUP
        and a.keys.shape[0] > 0
        and a.keys.shape[1] % 8 == 0
        and a.query.dtype in (torch.bfloat16, torch.float16)
        and a.keys.dtype == a.values.dtype
        and a.keys.dtype in (a.query.dtype, _E4M3)
        and _is_aligned(a.out)
        and _is_aligned(a.query)
        and _is_aligned(a.keys)
        and _is_aligned(a.values)
        and (a.keys.shape[2] == 1 or a.keys.stride(2) == a.values.stride(2) == head_size)
    )


def _is_aligned(x: torch.Tensor) -> bool:
    """Whether rows of the last dimension start at multiples of 16 bytes."""
    *outer, inner = x.stride()
    width = x.element_size()
    bits = x.data_ptr()
    for stride in outer:
        bits |= stride * width
    return inner == 1 and bits & 15 == 0
