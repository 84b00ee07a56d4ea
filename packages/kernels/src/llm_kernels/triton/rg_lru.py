"""The real-gated linear recurrent unit in Triton: channels go token by token."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from llm_kernels.checks import check_inner_contiguous
from llm_kernels.metadata import AttentionMetadata
from llm_kernels.state_checks import check_rg_lru
from llm_kernels.triton.launch_sizes import ceil_div
from llm_kernels.triton.state_rows import row_tokens, softplus, state_block

_CHANNELS = 64


@triton.jit  # type: ignore[untyped-decorator]
def _one_minus_exp(y: tl.tensor) -> tl.tensor:
    """1 - exp(y) for y <= 0, exact near 0 too: (1 - u) y / log(u) mends the rounding of u = exp(y)."""
    u = tl.exp(y)
    near = y > -0.5
    safe = tl.where(near & (u != 1.0), u, 0.75)
    mended = (1.0 - safe) * (y / tl.log(safe))
    return tl.where(near, tl.where(u == 1.0, -y, mended), 1.0 - u)


@triton.jit  # type: ignore[untyped-decorator]
def _scan_kernel(
    out: tl.tensor,
    x: tl.tensor,
    input_gate: tl.tensor,
    recurrent_gate: tl.tensor,
    a_param: tl.tensor,
    cache: tl.tensor,
    cu_query_lens: tl.tensor,
    context_lens: tl.tensor,
    block_tables: tl.tensor,
    out_stride: tl.tensor,
    x_stride: tl.tensor,
    input_gate_stride: tl.tensor,
    recurrent_gate_stride: tl.tensor,
    cache_stride_block: tl.tensor,
    cache_stride_channel: tl.tensor,
    table_stride: tl.tensor,
    first_row: tl.tensor,
    num_channels: tl.tensor,
    block_size: tl.tensor,
    CHANNELS: tl.constexpr,
    IS_DECODE: tl.constexpr,
) -> None:
    """One row, some channels. Grid (rows, channel blocks)."""
    row = tl.program_id(0).to(tl.int64) + first_row
    channels = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    held = channels < num_channels
    begin, end = row_tokens(cu_query_lens, row, IS_DECODE)
    context = tl.load(context_lens + row)
    first = begin.to(tl.int64)
    if context <= 0:
        for step in range(end - begin):
            zeros = tl.zeros([CHANNELS], dtype=tl.float32).to(out.dtype.element_ty)
            tl.store(out + (first + step) * out_stride + channels, zeros, mask=held)
        return
    if begin == end:
        return
    computed = context - (end - begin)
    table = block_tables + row * table_stride
    at_state = cache + channels * cache_stride_channel
    source = state_block(table, tl.maximum(computed - 1, 0), block_size)
    seen = held & (computed > 0)
    state = tl.load(at_state + source * cache_stride_block, mask=seen, other=0.0).to(tl.float32)
    rate = -8.0 * softplus(tl.load(a_param + channels, mask=held, other=0.0).to(tl.float32))
    for step in range(end - begin):
        token = first + step
        position = computed + step
        u = tl.load(x + token * x_stride + channels, mask=held, other=0.0).to(tl.float32)
        i = tl.load(input_gate + token * input_gate_stride + channels, mask=held, other=0.0).to(tl.float32)
        at_r = recurrent_gate + token * recurrent_gate_stride + channels
        log_decay = tl.sigmoid(tl.load(at_r, mask=held, other=0.0).to(tl.float32)) * rate
        size = tl.where(position == 0, 1.0, tl.sqrt(_one_minus_exp(2.0 * log_decay)))
        state = state * tl.exp(log_decay) + size * tl.sigmoid(i) * u
        tl.store(out + token * out_stride + channels, state.to(out.dtype.element_ty), mask=held)
        if ((position + 1) % block_size == 0) | (position == context - 1):
            target = state_block(table, position, block_size)
            tl.store(at_state + target * cache_stride_block, state.to(cache.dtype.element_ty), mask=held)


def rg_lru(
    out_TI: torch.Tensor,
    x_TI: torch.Tensor,
    input_gate_TI: torch.Tensor,
    recurrent_gate_TI: torch.Tensor,
    a_param_I: torch.Tensor,
    state_cache: torch.Tensor,
    metadata: AttentionMetadata,
    block_size: int,
) -> None:
    """Triton back end of `ops.rg_lru`."""
    check_rg_lru(out_TI, x_TI, input_gate_TI, recurrent_gate_TI, a_param_I, state_cache, metadata, block_size)
    packed = (out_TI, x_TI, input_gate_TI, recurrent_gate_TI)
    check_inner_contiguous(
        out_TI=out_TI, x_TI=x_TI, input_gate_TI=input_gate_TI, recurrent_gate_TI=recurrent_gate_TI
    )
    num_channels = x_TI.shape[1]
    decodes = metadata.num_decodes
    rows = metadata.context_lens.numel() - decodes
    for first_row, num_rows in ((0, decodes), (decodes, rows)):
        if num_rows <= 0:
            continue
        _scan_kernel[(num_rows, ceil_div(num_channels, _CHANNELS))](
            *packed,
            a_param_I.contiguous(),
            state_cache,
            metadata.cu_query_lens,
            metadata.context_lens,
            metadata.block_tables,
            *(x.stride(0) for x in packed),
            *state_cache.stride(),
            metadata.block_tables.stride(0),
            first_row,
            num_channels,
            block_size,
            CHANNELS=_CHANNELS,
            IS_DECODE=first_row == 0 and decodes > 0,
            num_warps=2,
        )
