"""Grouped linear and mixtures of experts in Triton: the launches. Nothing here waits for the device."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from triton.tools.tensor_descriptor import TensorDescriptor

from llm_kernels.checks import check_gate_options, check_grouped_linear, check_inner_contiguous
from llm_kernels.expert_mlp import ExpertMlp
from llm_kernels.fp8_format import E4M3, GROUP
from llm_kernels.triton import experts_kernels as kernels
from llm_kernels.triton import experts_token_kernels as token_kernels
from llm_kernels.triton.activation import activation_number
from llm_kernels.triton.dependent_launch import launch_options
from llm_kernels.triton.experts_sort import Blocks, sort_by_expert
from llm_kernels.triton.experts_tiles import (
    TOKEN_TILES,
    ExpertTiles,
    Tile,
    TokenTiles,
    expert_tiles,
    is_by_token,
)
from llm_kernels.triton.fp8_linear import empty_scales
from llm_kernels.triton.launch_sizes import ceil_div, power_of_2
from llm_kernels.triton.quantize_fp8 import quantize_fp8

_COMBINE_BLOCK = 1024
# The widest row, and piece of one, that a program of the kernels for a few tokens holds at once.
_UP_DEPTH = 4096
_DOWN_CHUNK = 512


def grouped_linear(
    out_PO: torch.Tensor,
    x_PI: torch.Tensor,
    weight_NOI: torch.Tensor,
    expert_ids: torch.Tensor,
    bias_NO: torch.Tensor | None,
) -> None:
    """Triton back end of `ops.grouped_linear`."""
    check_grouped_linear(out_PO, x_PI, weight_NOI, expert_ids, bias_NO)
    check_inner_contiguous(out_PO=out_PO, x_PI=x_PI, weight_NOI=weight_NOI)
    if x_PI.shape[0] == 0:
        return
    num_experts = weight_NOI.shape[0]
    out_PO.masked_fill_(((expert_ids < 0) | (expert_ids >= num_experts)).unsqueeze(-1), 0)
    tiles = expert_tiles(x_PI.dtype, x_PI.shape[0], num_experts)
    blocks = sort_by_expert(expert_ids, num_experts, tiles.block_m)
    multiply(out_PO, x_PI, weight_NOI, bias_NO, blocks, tiles.down, weights=None, is_sorted=False)


def moe(
    out_TE: torch.Tensor, x_TE: torch.Tensor, weights_TK: torch.Tensor, ids_TK: torch.Tensor, mlp: ExpertMlp
) -> None:
    """Triton back end of `ops.moe`."""
    mlp.check(out_TE, x_TE, weights_TK, ids_TK)
    check_gate_options(mlp.activation, mlp.limit, mlp.alpha)
    check_inner_contiguous(out_TE=out_TE, x_TE=x_TE, up=mlp.up, down=mlp.down)
    for field in ("up_bias", "down_bias", "up_scale", "down_scale"):
        if (given := getattr(mlp, field)) is not None:
            check_inner_contiguous(**{field: given})
    num_tokens, num_experts = x_TE.shape[0], mlp.down.shape[0]
    if num_tokens == 0:
        return
    ids, weights = ids_TK.contiguous(), weights_TK.contiguous()
    if is_by_token(num_tokens, num_experts):
        moe_by_token(out_TE, x_TE, weights, ids, mlp, TOKEN_TILES)
    else:
        is_quantized = mlp.up_scale is not None
        tiles = expert_tiles(x_TE.dtype, ids.numel(), num_experts, is_quantized=is_quantized)
        moe_by_expert(out_TE, x_TE, weights, ids, mlp, tiles)


def moe_by_token(
    out_TE: torch.Tensor,
    x_TE: torch.Tensor,
    weights_TK: torch.Tensor,
    ids_TK: torch.Tensor,
    mlp: ExpertMlp,
    tiles: TokenTiles,
) -> None:
    """For few tokens: each pair reads its expert's weights; two launches."""
    (num_tokens, top_k), (num_experts, size, inner_size) = ids_TK.shape, mlp.down.shape
    inner = x_TE.new_empty(ids_TK.numel(), inner_size)
    depth = min(power_of_2(size), _UP_DEPTH)
    rows = max(1, tiles.up_weights // (depth * (1 + mlp.gated)))
    token_kernels.token_up_kernel[(ceil_div(inner_size, rows), ids_TK.numel())](
        inner,
        x_TE,
        mlp.up,
        mlp.up if mlp.up_bias is None else mlp.up_bias,
        mlp.up if mlp.up_scale is None else mlp.up_scale,
        weights_TK,
        ids_TK,
        inner.stride(0),
        x_TE.stride(0),
        mlp.up.stride(0),
        mlp.up.stride(1),
        0 if mlp.up_bias is None else mlp.up_bias.stride(0),
        *_scale_strides(mlp.up_scale),
        num_experts,
        inner_size,
        size,
        TOP_K=top_k,
        BLOCK_I=rows,
        BLOCK_K=depth,
        ONE_PASS=size <= depth,
        num_warps=tiles.up_warps,
        **_up_options(mlp),
        **launch_options(x_TE.device),
    )
    choices = power_of_2(top_k)
    depth, chunks = _chunks(inner_size)
    rows = max(1, tiles.down_weights // (depth * chunks * choices))
    rows = 1 << (rows.bit_length() - 1)
    token_kernels.token_down_kernel[(ceil_div(size, rows), num_tokens)](
        out_TE,
        inner,
        mlp.down,
        mlp.down if mlp.down_bias is None else mlp.down_bias,
        mlp.down if mlp.down_scale is None else mlp.down_scale,
        weights_TK,
        ids_TK,
        x_TE,
        out_TE.stride(0),
        inner.stride(0),
        mlp.down.stride(0),
        mlp.down.stride(1),
        0 if mlp.down_bias is None else mlp.down_bias.stride(0),
        *_scale_strides(mlp.down_scale),
        x_TE.stride(0),
        num_experts,
        size,
        inner_size,
        TOP_K=top_k,
        ZERO_EXPERTS=mlp.zero_experts,
        HAS_BIAS=mlp.down_bias is not None,
        SCALED=not mlp.weight_input,
        SCALES=_scales(mlp.down_scale),
        BLOCK_E=rows,
        K_PAD=choices,
        BLOCK_I=depth,
        CHUNKS=chunks,
        num_warps=tiles.down_warps,
        **launch_options(x_TE.device),
    )


def moe_by_expert(
    out_TE: torch.Tensor,
    x_TE: torch.Tensor,
    weights_TK: torch.Tensor,
    ids_TK: torch.Tensor,
    mlp: ExpertMlp,
    tiles: ExpertTiles,
) -> None:
    """Sorts the pairs by expert and multiplies block by block."""
    top_k, (num_experts, size, _) = ids_TK.shape[1], mlp.down.shape
    blocks = sort_by_expert(ids_TK.view(-1), num_experts, tiles.block_m)
    inner = multiply_up(x_TE, weights_TK, blocks, tiles.up, mlp, top_k, narrow=tiles.narrow)
    outputs = x_TE.new_empty(ids_TK.numel(), size)
    weights = None if mlp.weight_input else weights_TK
    multiply(
        outputs,
        inner,
        mlp.down,
        mlp.down_bias,
        blocks,
        tiles.down,
        weights=weights,
        is_sorted=True,
        scale=mlp.down_scale,
        narrow=tiles.narrow,
    )
    combine(out_TE, outputs, x_TE, weights_TK, ids_TK, num_experts, mlp.zero_experts)


def combine(
    out_TE: torch.Tensor,
    outputs_PE: torch.Tensor,
    x_TE: torch.Tensor,
    weights_TK: torch.Tensor,
    ids_TK: torch.Tensor,
    num_experts: int,
    zero_experts: int,
) -> None:
    """Sums the weighted outputs of each token's pairs, and what its zero experts give back."""
    num_tokens, size = out_TE.shape
    kernels.combine_kernel[(num_tokens, ceil_div(size, _COMBINE_BLOCK))](
        out_TE,
        outputs_PE,
        x_TE,
        ids_TK,
        weights_TK,
        out_TE.stride(0),
        outputs_PE.stride(0),
        x_TE.stride(0),
        num_experts,
        size,
        ZERO_EXPERTS=zero_experts,
        K=ids_TK.shape[1],
        BLOCK=_COMBINE_BLOCK,
        num_warps=4,
        **launch_options(x_TE.device),
    )


def multiply_up(
    x_TE: torch.Tensor,
    weights_TK: torch.Tensor,
    blocks: Blocks,
    tile: Tile,
    mlp: ExpertMlp,
    top_k: int,
    *,
    narrow: bool = False,
) -> torch.Tensor:
    """The experts' inner layer after the activation, a row a place in the blocks: [B * block_m, I].

    `narrow`: rows are quantized first, where the weights are e4m3.
    """
    inner_size, in_size = mlp.down.shape[2], x_TE.shape[1]
    tile = _scaled_by_step(tile, mlp.up_scale, 64)
    inner = x_TE.new_empty(blocks.pairs.numel(), inner_size)
    num_blocks = blocks.experts.numel()
    x, x_scales = _narrowed(x_TE, mlp.up_scale, wanted=narrow)
    weight = _described(mlp.up, tile)
    kernels.up_kernel[(num_blocks * ceil_div(inner_size, tile.block_n),)](
        inner,
        x,
        mlp.up if weight is None else weight,
        mlp.up if mlp.up_bias is None else mlp.up_bias,
        mlp.up if mlp.up_scale is None else mlp.up_scale,
        x if x_scales is None else x_scales,
        weights_TK,
        blocks.pairs,
        blocks.experts,
        inner.stride(0),
        x.stride(0),
        mlp.up.stride(0),
        mlp.up.stride(1),
        0 if mlp.up_bias is None else mlp.up_bias.stride(0),
        *_scale_strides(mlp.up_scale),
        *_scale_strides(x_scales),
        weights_TK.numel(),
        num_blocks,
        inner_size,
        in_size,
        TOP_K=top_k,
        DESCRIPTOR=weight is not None,
        NARROW=x_scales is not None,
        **_up_options(mlp),
        **_tile_options(tile, blocks.block_m, x_TE.dtype, in_size),
        **launch_options(x_TE.device),
    )
    return inner


def multiply(
    out: torch.Tensor,
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    blocks: Blocks,
    tile: Tile,
    *,
    weights: torch.Tensor | None,
    is_sorted: bool,
    scale: torch.Tensor | None = None,
    narrow: bool = False,
) -> None:
    """Row p of `out`: pair p times its expert's weights; the rows of `x` lie by pair, or sorted.

    `narrow`: see `multiply_up`; for sorted rows only.
    """
    out_size, in_size = weight.shape[1:]
    num_blocks = blocks.experts.numel()
    tile = _scaled_by_step(tile, scale, 128)
    described = _described(weight, tile)
    x, x_scales = _narrowed(x, scale, wanted=narrow)
    rows: Any = x
    if is_sorted and described is not None:
        rows = TensorDescriptor.from_tensor(x, [blocks.block_m, tile.block_k])
    kernels.grouped_gemm_kernel[(num_blocks * ceil_div(out_size, tile.block_n),)](
        out,
        rows,
        weight if described is None else described,
        weight if bias is None else bias,
        weight if scale is None else scale,
        x if x_scales is None else x_scales,
        out if weights is None else weights,
        blocks.pairs,
        blocks.experts,
        out.stride(0),
        x.stride(0),
        weight.stride(0),
        weight.stride(1),
        0 if bias is None else bias.stride(0),
        *_scale_strides(scale),
        *_scale_strides(x_scales),
        out.shape[0],
        num_blocks,
        out_size,
        in_size,
        SORTED_ROWS=is_sorted,
        HAS_BIAS=bias is not None,
        SCALED=weights is not None,
        DESCRIPTOR=described is not None,
        SCALES=_scales(scale),
        NARROW=x_scales is not None,
        **_tile_options(tile, blocks.block_m, x.dtype, in_size),
        **launch_options(x.device),
    )


def _narrowed(
    x: torch.Tensor, scale: torch.Tensor | None, *, wanted: bool
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """The rows as e4m3 values with scales as the weights' ask for, or as they are."""
    if scale is None or not wanted:
        return x, None
    values = torch.empty(x.shape, dtype=E4M3, device=x.device)
    scales = empty_scales(x.shape[0], x.shape[1], scale[0])
    quantize_fp8(values, scales, x, None)
    return values, scales


def _chunks(size: int) -> tuple[int, int]:
    """A power of two, and how often it is taken (up to four times) so as to cover little more than `size`."""
    width = min(max(power_of_2(ceil_div(size, 4)), 16), _DOWN_CHUNK)
    return width, min(ceil_div(size, width), 4)


def _up_options(mlp: ExpertMlp) -> dict[str, Any]:
    return {
        "GATED": mlp.gated,
        "KIND": activation_number(mlp.activation),
        "LIMIT": mlp.limit,
        "ALPHA": mlp.alpha,
        "HAS_BIAS": mlp.up_bias is not None,
        "SCALE_INPUT": mlp.weight_input,
        "SCALES": _scales(mlp.up_scale),
    }


def _scales(scale: torch.Tensor | None) -> int:
    """SCALES of the kernels."""
    return 0 if scale is None else scale.ndim - 1


def _scale_strides(scale: torch.Tensor | None) -> tuple[int, int]:
    return (0, 0) if scale is None else (scale.stride(0), scale.stride(1))


def _tile_options(tile: Tile, block_m: int, dtype: torch.dtype, in_size: int) -> dict[str, Any]:
    return {
        "EVEN_K": in_size % tile.block_k == 0,
        "BLOCK_M": block_m,
        "BLOCK_N": tile.block_n,
        "BLOCK_K": tile.block_k,
        "GROUP_M": tile.group_m,
        "PRECISION": "ieee" if dtype == torch.float32 else "tf32",
        "num_warps": tile.num_warps,
        "num_stages": tile.num_stages,
    }


def _scaled_by_step(tile: Tile, scale: torch.Tensor | None, most_outputs: int) -> Tile:
    """Where scales are a block, steps lie in one of 128 inputs, and registers hold the step's sum as well."""
    if _scales(scale) < 2:
        return tile
    return replace(tile, block_k=min(tile.block_k, GROUP), block_n=min(tile.block_n, most_outputs))


def _described(weight: torch.Tensor, tile: Tile) -> TensorDescriptor | None:
    """The weights [N, O, I] as a matrix for the bulk copy engine; None: not wanted or not possible."""
    row_bytes = weight.shape[2] * weight.element_size()
    if not tile.descriptor or not weight.is_contiguous() or row_bytes % 16 or weight.data_ptr() % 16:
        return None
    return TensorDescriptor.from_tensor(weight.view(-1, weight.shape[2]), [tile.block_n, tile.block_k])
