"""The causal depthwise convolution in Triton: one kernel for decode rows, two for longer ones."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from llm_kernels.checks import check_inner_contiguous
from llm_kernels.metadata import AttentionMetadata
from llm_kernels.state_checks import check_causal_conv
from llm_kernels.triton.launch_sizes import ceil_div
from llm_kernels.triton.state_rows import row_tokens, state_block

_CHANNELS = 256
_TOKENS = 16


@triton.jit  # type: ignore[untyped-decorator]
def _finish(
    total: tl.tensor,
    bias: tl.tensor,
    channels: tl.tensor,
    held: tl.tensor,
    HAS_BIAS: tl.constexpr,
    SILU: tl.constexpr,
) -> tl.tensor:
    if HAS_BIAS:
        total += tl.load(bias + channels, mask=held, other=0.0).to(tl.float32)
    if SILU:
        total = total * tl.sigmoid(total)
    return total


@triton.jit  # type: ignore[untyped-decorator]
def _decode_kernel(
    out: tl.tensor,
    x: tl.tensor,
    weight: tl.tensor,
    bias: tl.tensor,
    cache: tl.tensor,
    context_lens: tl.tensor,
    block_tables: tl.tensor,
    out_stride: tl.tensor,
    x_stride: tl.tensor,
    weight_stride: tl.tensor,
    cache_stride_block: tl.tensor,
    cache_stride_channel: tl.tensor,
    cache_stride_tap: tl.tensor,
    table_stride: tl.tensor,
    num_channels: tl.tensor,
    block_size: tl.tensor,
    WIDTH: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    SILU: tl.constexpr,
    CHANNELS: tl.constexpr,
) -> None:
    """One token of one row, some channels. Grid (rows, channel blocks)."""
    row = tl.program_id(0).to(tl.int64)
    channels = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    held = channels < num_channels
    context = tl.load(context_lens + row)
    if context <= 0:
        zeros = tl.zeros([CHANNELS], dtype=tl.float32)
        tl.store(out + row * out_stride + channels, zeros.to(out.dtype.element_ty), mask=held)
        return
    table = block_tables + row * table_stride
    source = state_block(table, tl.maximum(context - 2, 0), block_size)
    target = state_block(table, context - 1, block_size)
    at = cache + channels * cache_stride_channel
    total = tl.zeros([CHANNELS], dtype=tl.float32)
    for tap in tl.static_range(WIDTH - 1):
        seen = held & (context > 1)
        old = tl.load(at + source * cache_stride_block + tap * cache_stride_tap, mask=seen, other=0.0)
        total += old.to(tl.float32) * tl.load(
            weight + channels * weight_stride + tap, mask=held, other=0.0
        ).to(tl.float32)
        if tap > 0:
            # The blocks may be one: all threads have read a column before any writes it.
            tl.debug_barrier()
            tl.store(at + target * cache_stride_block + (tap - 1) * cache_stride_tap, old, mask=held)
    new = tl.load(x + row * x_stride + channels, mask=held, other=0.0)
    total += new.to(tl.float32) * tl.load(
        weight + channels * weight_stride + WIDTH - 1, mask=held, other=0.0
    ).to(tl.float32)
    last = at + target * cache_stride_block + (WIDTH - 2) * cache_stride_tap
    tl.debug_barrier()
    tl.store(last, new.to(cache.dtype.element_ty), mask=held)
    total = _finish(total, bias, channels, held, HAS_BIAS, SILU)
    tl.store(out + row * out_stride + channels, total.to(out.dtype.element_ty), mask=held)


@triton.jit  # type: ignore[untyped-decorator]
def _convolve_kernel(
    out: tl.tensor,
    x: tl.tensor,
    weight: tl.tensor,
    bias: tl.tensor,
    cache: tl.tensor,
    cu_query_lens: tl.tensor,
    context_lens: tl.tensor,
    block_tables: tl.tensor,
    out_stride: tl.tensor,
    x_stride: tl.tensor,
    weight_stride: tl.tensor,
    cache_stride_block: tl.tensor,
    cache_stride_channel: tl.tensor,
    cache_stride_tap: tl.tensor,
    table_stride: tl.tensor,
    first_row: tl.tensor,
    num_channels: tl.tensor,
    block_size: tl.tensor,
    WIDTH: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    SILU: tl.constexpr,
    CHANNELS: tl.constexpr,
    TOKENS: tl.constexpr,
) -> None:
    """Outputs of a tile of one row's tokens; writes no state. Grid (rows, token tiles, channel blocks)."""
    row = tl.program_id(0).to(tl.int64) + first_row
    begin, end = row_tokens(cu_query_lens, row, False)
    steps = tl.program_id(1) * TOKENS + tl.arange(0, TOKENS)
    length = end - begin
    if tl.program_id(1) * TOKENS >= length:
        return
    channels = tl.program_id(2) * CHANNELS + tl.arange(0, CHANNELS)
    inside = (steps < length)[:, None] & (channels < num_channels)[None, :]
    tokens = (begin + steps).to(tl.int64)
    context = tl.load(context_lens + row)
    total = tl.zeros([TOKENS, CHANNELS], dtype=tl.float32)
    if context > 0:
        computed = context - length
        source = state_block(block_tables + row * table_stride, tl.maximum(computed - 1, 0), block_size)
        at = cache + source * cache_stride_block + channels[None, :] * cache_stride_channel
        for tap in tl.static_range(WIDTH):
            back = steps - (WIDTH - 1) + tap
            new = tl.load(
                x + (tokens - (WIDTH - 1) + tap)[:, None] * x_stride + channels[None, :],
                mask=inside & (back >= 0)[:, None],
                other=0.0,
            )
            old = tl.load(
                at + (back + (WIDTH - 1))[:, None] * cache_stride_tap,
                mask=inside & (back < 0)[:, None] & (computed > 0),
                other=0.0,
            )
            factor = tl.load(weight + channels * weight_stride + tap, mask=channels < num_channels, other=0.0)
            total += (new.to(tl.float32) + old.to(tl.float32)) * factor.to(tl.float32)[None, :]
        total = _finish(total, bias, channels[None, :], (channels < num_channels)[None, :], HAS_BIAS, SILU)
    at_out = out + tokens[:, None] * out_stride + channels[None, :]
    tl.store(at_out, total.to(out.dtype.element_ty), mask=inside)


@triton.jit  # type: ignore[untyped-decorator]
def _keep_kernel(
    x: tl.tensor,
    cache: tl.tensor,
    cu_query_lens: tl.tensor,
    context_lens: tl.tensor,
    block_tables: tl.tensor,
    x_stride: tl.tensor,
    cache_stride_block: tl.tensor,
    cache_stride_channel: tl.tensor,
    cache_stride_tap: tl.tensor,
    table_stride: tl.tensor,
    first_row: tl.tensor,
    num_channels: tl.tensor,
    block_size: tl.tensor,
    WIDTH: tl.constexpr,
    CHANNELS: tl.constexpr,
) -> None:
    """States of one row at its borders and its end, after all outputs. Grid (rows, channel blocks).

    One program writes all of a row's states: the first may mix the state it goes on from with new inputs, and
    may lie in the same block.
    """
    row = tl.program_id(0).to(tl.int64) + first_row
    begin, end = row_tokens(cu_query_lens, row, False)
    context = tl.load(context_lens + row)
    if context <= 0:
        return
    channels = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    held = channels < num_channels
    computed = context - (end - begin)
    table = block_tables + row * table_stride
    source = state_block(table, tl.maximum(computed - 1, 0), block_size)
    at = cache + channels * cache_stride_channel
    # The last first: only the first block may be the one that the row goes on from.
    first, count = computed // block_size, tl.cdiv(context, block_size) - computed // block_size
    for back in range(count):
        block = first + count - 1 - back
        stop = tl.minimum((block + 1) * block_size, context)
        target = tl.load(table + block).to(tl.int64)
        for tap in tl.static_range(WIDTH - 1):
            step = stop - computed - (WIDTH - 1) + tap
            new = tl.load(
                x + (begin + step).to(tl.int64) * x_stride + channels, mask=held & (step >= 0), other=0.0
            )
            # Column tap of the new state is column tap + steps of the old one: read before it is written.
            old = tl.load(
                at + source * cache_stride_block + (step + (WIDTH - 1)) * cache_stride_tap,
                mask=held & (step < 0) & (computed > 0),
                other=0.0,
            )
            tl.debug_barrier()
            value = tl.where(step >= 0, new.to(tl.float32), old.to(tl.float32))
            to = at + target * cache_stride_block + tap * cache_stride_tap
            tl.store(to, value.to(cache.dtype.element_ty), mask=held)


def causal_conv1d(
    out_TC: torch.Tensor,
    x_TC: torch.Tensor,
    weight_CW: torch.Tensor,
    bias_C: torch.Tensor | None,
    state_cache: torch.Tensor,
    metadata: AttentionMetadata,
    block_size: int,
    activation: str | None,
) -> None:
    """Triton back end of `ops.causal_conv1d`."""
    check_causal_conv(out_TC, x_TC, weight_CW, bias_C, state_cache, metadata, block_size, activation)
    check_inner_contiguous(out_TC=out_TC, x_TC=x_TC, weight=weight_CW)
    bias = x_TC if bias_C is None else bias_C.contiguous()
    num_channels, width = weight_CW.shape
    strides = (out_TC.stride(0), x_TC.stride(0), weight_CW.stride(0))
    table = metadata.block_tables.stride(0)
    constants = {"WIDTH": width, "CHANNELS": _CHANNELS}
    flags = {"HAS_BIAS": bias_C is not None, "SILU": activation == "silu"}
    blocks = ceil_div(num_channels, _CHANNELS)
    decodes = metadata.num_decodes
    rows = metadata.context_lens.numel() - decodes
    if decodes > 0:
        _decode_kernel[(decodes, blocks)](
            out_TC,
            x_TC,
            weight_CW,
            bias,
            state_cache,
            metadata.context_lens,
            metadata.block_tables,
            *strides,
            *state_cache.stride(),
            table,
            num_channels,
            block_size,
            **constants,
            **flags,
        )
    if rows <= 0:
        return
    lengths = (metadata.cu_query_lens, metadata.context_lens, metadata.block_tables)
    _convolve_kernel[(rows, ceil_div(metadata.max_query_len, _TOKENS), blocks)](
        out_TC,
        x_TC,
        weight_CW,
        bias,
        state_cache,
        *lengths,
        *strides,
        *state_cache.stride(),
        table,
        decodes,
        num_channels,
        block_size,
        TOKENS=_TOKENS,
        **constants,
        **flags,
    )
    _keep_kernel[(rows, blocks)](
        x_TC,
        state_cache,
        *lengths,
        x_TC.stride(0),
        *state_cache.stride(),
        table,
        decodes,
        num_channels,
        block_size,
        **constants,
    )
