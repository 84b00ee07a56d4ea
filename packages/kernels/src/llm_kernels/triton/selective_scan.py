"""The selective scan of Mamba 1 in Triton: a tile of channels with all their states goes token by token."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from llm_kernels.checks import check_inner_contiguous
from llm_kernels.metadata import AttentionMetadata
from llm_kernels.state_checks import check_selective_scan
from llm_kernels.triton.launch_sizes import ceil_div, power_of_2
from llm_kernels.triton.state_rows import row_tokens, softplus, state_block

_CHANNELS = 32


@triton.jit  # type: ignore[untyped-decorator]
def _scan_kernel(
    out: tl.tensor,
    x: tl.tensor,
    dt: tl.tensor,
    rate: tl.tensor,
    B: tl.tensor,
    C: tl.tensor,
    skip: tl.tensor,
    bias: tl.tensor,
    cache: tl.tensor,
    cu_query_lens: tl.tensor,
    context_lens: tl.tensor,
    block_tables: tl.tensor,
    out_stride: tl.tensor,
    x_stride: tl.tensor,
    dt_stride: tl.tensor,
    rate_stride_channel: tl.tensor,
    rate_stride_state: tl.tensor,
    B_stride_token: tl.tensor,
    B_stride_group: tl.tensor,
    C_stride_token: tl.tensor,
    C_stride_group: tl.tensor,
    cache_stride_block: tl.tensor,
    cache_stride_channel: tl.tensor,
    cache_stride_state: tl.tensor,
    table_stride: tl.tensor,
    first_row: tl.tensor,
    num_channels: tl.tensor,
    group_size: tl.tensor,
    block_size: tl.tensor,
    S: tl.constexpr,
    S_PAD: tl.constexpr,
    CHANNELS: tl.constexpr,
    ONE_GROUP: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    HAS_SKIP: tl.constexpr,
    IS_DECODE: tl.constexpr,
) -> None:
    """One row, some channels. Grid (rows, channel blocks)."""
    row = tl.program_id(0).to(tl.int64) + first_row
    channels = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    states = tl.arange(0, S_PAD)
    channel_held, state_held = channels < num_channels, states < S
    held = channel_held[:, None] & state_held[None, :]
    begin, end = row_tokens(cu_query_lens, row, IS_DECODE)
    context = tl.load(context_lens + row)
    first = begin.to(tl.int64)
    if context <= 0:
        for step in range(end - begin):
            zeros = tl.zeros([CHANNELS], dtype=tl.float32).to(out.dtype.element_ty)
            tl.store(out + (first + step) * out_stride + channels, zeros, mask=channel_held)
        return
    if begin == end:
        return
    computed = context - (end - begin)
    table = block_tables + row * table_stride
    at_state = cache + channels[:, None] * cache_stride_channel + states[None, :] * cache_stride_state
    source = state_block(table, tl.maximum(computed - 1, 0), block_size)
    seen = held & (computed > 0)
    state = tl.load(at_state + source * cache_stride_block, mask=seen, other=0.0).to(tl.float32)
    at_rate = rate + channels[:, None] * rate_stride_channel + states[None, :] * rate_stride_state
    A = tl.load(at_rate, mask=held, other=0.0).to(tl.float32)
    group = channels // group_size
    for step in range(end - begin):
        token = first + step
        u = tl.load(x + token * x_stride + channels, mask=channel_held, other=0.0).to(tl.float32)
        d = tl.load(dt + token * dt_stride + channels, mask=channel_held, other=0.0).to(tl.float32)
        if HAS_BIAS:
            d += tl.load(bias + channels, mask=channel_held, other=0.0).to(tl.float32)
        d = softplus(d)
        if ONE_GROUP:
            b = tl.load(B + token * B_stride_token + states, mask=state_held, other=0.0)[None, :]
            c = tl.load(C + token * C_stride_token + states, mask=state_held, other=0.0)[None, :]
        else:
            at_b = B + token * B_stride_token + group[:, None] * B_stride_group + states[None, :]
            at_c = C + token * C_stride_token + group[:, None] * C_stride_group + states[None, :]
            b = tl.load(at_b, mask=held, other=0.0)
            c = tl.load(at_c, mask=held, other=0.0)
        state = state * tl.exp(d[:, None] * A) + (d * u)[:, None] * b.to(tl.float32)
        result = tl.sum(state * c.to(tl.float32), axis=1)
        if HAS_SKIP:
            result += u * tl.load(skip + channels, mask=channel_held, other=0.0).to(tl.float32)
        tl.store(out + token * out_stride + channels, result.to(out.dtype.element_ty), mask=channel_held)
        position = computed + step
        if ((position + 1) % block_size == 0) | (position == context - 1):
            target = state_block(table, position, block_size)
            tl.store(at_state + target * cache_stride_block, state.to(cache.dtype.element_ty), mask=held)


def selective_scan(
    out_TI: torch.Tensor,
    x_TI: torch.Tensor,
    dt_TI: torch.Tensor,
    A_IS: torch.Tensor,
    B_TGS: torch.Tensor,
    C_TGS: torch.Tensor,
    D_I: torch.Tensor | None,
    dt_bias_I: torch.Tensor | None,
    state_cache: torch.Tensor,
    metadata: AttentionMetadata,
    block_size: int,
) -> None:
    """Triton back end of `ops.selective_scan`."""
    check_selective_scan(
        out_TI, x_TI, dt_TI, A_IS, B_TGS, C_TGS, D_I, dt_bias_I, state_cache, metadata, block_size
    )
    check_inner_contiguous(out_TI=out_TI, x_TI=x_TI, dt_TI=dt_TI, B_TGS=B_TGS, C_TGS=C_TGS)
    num_channels, states = A_IS.shape
    decodes = metadata.num_decodes
    rows = metadata.context_lens.numel() - decodes
    for first_row, num_rows in ((0, decodes), (decodes, rows)):
        if num_rows <= 0:
            continue
        _scan_kernel[(num_rows, ceil_div(num_channels, _CHANNELS))](
            out_TI,
            x_TI,
            dt_TI,
            A_IS,
            B_TGS,
            C_TGS,
            x_TI if D_I is None else D_I.contiguous(),
            x_TI if dt_bias_I is None else dt_bias_I.contiguous(),
            state_cache,
            metadata.cu_query_lens,
            metadata.context_lens,
            metadata.block_tables,
            *(x.stride(0) for x in (out_TI, x_TI, dt_TI)),
            *A_IS.stride(),
            *B_TGS.stride()[:2],
            *C_TGS.stride()[:2],
            *state_cache.stride(),
            metadata.block_tables.stride(0),
            first_row,
            num_channels,
            num_channels // B_TGS.shape[1],
            block_size,
            S=states,
            S_PAD=power_of_2(states),
            CHANNELS=_CHANNELS,
            ONE_GROUP=B_TGS.shape[1] == 1,
            HAS_BIAS=dt_bias_I is not None,
            HAS_SKIP=D_I is not None,
            IS_DECODE=first_row == 0 and decodes > 0,
            num_warps=2,
        )
