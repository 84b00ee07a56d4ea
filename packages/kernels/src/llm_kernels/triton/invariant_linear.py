"""Matrix products in Triton whose rows do not depend on their number: tiles change, the order of sums never.

Every output is one chain of sums over the inputs from the first to the last, never cut into parts that are
added afterwards. On Hopper tiles have at least 64 rows, so that all of them run on the same instruction
(wgmma); that its sums do not depend on the other sizes of a tile is tested on the device.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from llm_kernels.checks import check_inner_contiguous
from llm_kernels.errors import InvalidArgument
from llm_kernels.triton.dependent_launch import launch_options, let_later_start, wait_for_earlier
from llm_kernels.triton.launch_sizes import ceil_div


@dataclass(frozen=True, slots=True, kw_only=True)
class ProductTile:
    """Sizes of one launch: rows, outputs and inputs of a tile, and how it is pipelined."""

    block_m: int
    block_n: int
    block_k: int
    num_warps: int
    num_stages: int


@triton.jit(do_not_specialize=["num_tokens"])  # type: ignore[untyped-decorator]
def product_kernel(
    out: tl.tensor,
    x: tl.tensor,
    weight: tl.tensor,
    bias: tl.tensor,
    num_tokens: tl.tensor,
    out_size: tl.tensor,
    in_size: tl.tensor,
    out_stride_token: tl.tensor,
    out_stride_head: tl.tensor,
    x_stride_token: tl.tensor,
    x_stride_head: tl.tensor,
    weight_stride_head: tl.tensor,
    weight_stride_out: tl.tensor,
    weight_stride_in: tl.tensor,
    HAS_BIAS: tl.constexpr,
    EVEN_K: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP_M: tl.constexpr,
    PRECISION: tl.constexpr,
    PDL: tl.constexpr,
) -> None:
    """One tile of out[:, h] = x[:, h] @ weight[h].T + bias. Grid (tiles, heads)."""
    let_later_start(PDL)
    # Programs that run together share rows of x and of the weight.
    num_columns = tl.cdiv(out_size, BLOCK_N)
    num_rows = tl.cdiv(num_tokens, BLOCK_M)
    group = tl.program_id(0) // (GROUP_M * num_columns)
    within = tl.program_id(0) % (GROUP_M * num_columns)
    group_size = tl.minimum(num_rows - group * GROUP_M, GROUP_M)
    head = tl.program_id(1).to(tl.int64)
    rows = (group * GROUP_M + within % group_size) * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = (within // group_size) * BLOCK_N + tl.arange(0, BLOCK_N)
    inner = tl.arange(0, BLOCK_K)
    is_row = (rows < num_tokens)[:, None]
    # Columns past the end repeat the first ones, so that loads need no mask for them. Rows are masked: with
    # few tokens most of a tile is none, and reading it would cost more than the weights.
    column = (columns % out_size).to(tl.int64)
    x_at = x + rows.to(tl.int64)[:, None] * x_stride_token + head * x_stride_head + inner[None, :]
    weight_at = weight + head * weight_stride_head + column[None, :] * weight_stride_out
    weight_at += inner[:, None] * weight_stride_in
    total = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    wait_for_earlier(PDL)
    for start in range(0, in_size, BLOCK_K):
        if EVEN_K:
            a = tl.load(x_at, mask=is_row, other=0.0)
            b = tl.load(weight_at)
        else:
            left = in_size - start
            a = tl.load(x_at, mask=is_row & (inner < left)[None, :], other=0.0)
            b = tl.load(weight_at, mask=(inner < left)[:, None], other=0.0)
        total = tl.dot(a, b, total, input_precision=PRECISION)
        x_at += BLOCK_K
        weight_at += BLOCK_K * weight_stride_in
    if HAS_BIAS:
        total += tl.load(bias + column).to(tl.float32)[None, :]
    at = out + rows.to(tl.int64)[:, None] * out_stride_token + head * out_stride_head + columns[None, :]
    tl.store(at, total.to(out.dtype.element_ty), mask=is_row & (columns < out_size)[None, :])


def tile_for(dtype: torch.dtype, num_tokens: int, out_size: int) -> ProductTile:
    """The tile of a product; what of it depends on the number of tokens changes no sum."""
    if dtype == torch.float32:
        return ProductTile(block_m=32, block_n=32, block_k=32, num_warps=4, num_stages=2)
    # As measured on an H200, of seven tiles (docs/performance.md).
    if num_tokens <= 64:
        block_n = 32 if out_size <= 4096 else 64
        return ProductTile(block_m=64, block_n=block_n, block_k=128, num_warps=4, num_stages=4)
    if ceil_div(num_tokens, 128) * ceil_div(out_size, 128) < 132:
        return ProductTile(block_m=64, block_n=64, block_k=128, num_warps=4, num_stages=4)
    return ProductTile(block_m=128, block_n=128, block_k=64, num_warps=8, num_stages=4)


def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """Batch-invariant back end of `ops.linear`."""
    *outer, in_size = x.shape
    if weight.ndim != 2 or weight.shape[1] != in_size:
        raise InvalidArgument("weight", f"expected [F, {in_size}], got {list(weight.shape)}")
    if weight.dtype != x.dtype:
        raise InvalidArgument("weight", f"expected {x.dtype}, got {weight.dtype}")
    x_TE = x.reshape(-1, in_size)
    out = torch.empty((x_TE.shape[0], weight.shape[0]), dtype=x.dtype, device=x.device)
    multiply(out, x_TE, weight, bias, tile_for(x.dtype, x_TE.shape[0], weight.shape[0]))
    return out.view(*outer, weight.shape[0])


def head_linear(x_THI: torch.Tensor, weight_HOI: torch.Tensor) -> torch.Tensor:
    """Batch-invariant back end of `ops.head_linear`."""
    check_inner_contiguous(x_THI=x_THI)
    out_THO = x_THI.new_empty((*x_THI.shape[:2], weight_HOI.shape[1]))
    _launch(out_THO, x_THI, weight_HOI, None, tile_for(x_THI.dtype, x_THI.shape[0], weight_HOI.shape[1]))
    return out_THO


def multiply(
    out_TF: torch.Tensor,
    x_TE: torch.Tensor,
    weight_FE: torch.Tensor,
    bias: torch.Tensor | None,
    tile: ProductTile,
) -> None:
    """Write `x @ weight.T + bias`.

    Args:
        out_TF: [T, F], contiguous rows.
        x_TE: [T, E], contiguous rows.
        weight_FE: [F, E], dtype of `x`; any strides.
        bias: [F] or None.
        tile: How the product is cut.
    """
    check_inner_contiguous(out_TF=out_TF, x_TE=x_TE)
    _launch(out_TF.unsqueeze(1), x_TE.unsqueeze(1), weight_FE.unsqueeze(0), bias, tile)


def _launch(
    out_THF: torch.Tensor,
    x_THE: torch.Tensor,
    weight_HFE: torch.Tensor,
    bias: torch.Tensor | None,
    tile: ProductTile,
) -> None:
    num_tokens, num_heads, in_size = x_THE.shape
    out_size = weight_HFE.shape[1]
    if out_THF.numel() == 0:
        return
    tiles = ceil_div(num_tokens, tile.block_m) * ceil_div(out_size, tile.block_n)
    product_kernel[(tiles, num_heads)](
        out_THF,
        x_THE,
        weight_HFE,
        x_THE if bias is None else bias.contiguous(),
        num_tokens,
        out_size,
        in_size,
        *out_THF.stride()[:2],
        *x_THE.stride()[:2],
        *weight_HFE.stride(),
        HAS_BIAS=bias is not None,
        EVEN_K=in_size % tile.block_k == 0,
        BLOCK_M=tile.block_m,
        BLOCK_N=tile.block_n,
        BLOCK_K=tile.block_k,
        GROUP_M=8,
        PRECISION="ieee" if x_THE.dtype == torch.float32 else "tf32",
        num_warps=tile.num_warps,
        num_stages=tile.num_stages,
        **launch_options(x_THE.device),
    )
