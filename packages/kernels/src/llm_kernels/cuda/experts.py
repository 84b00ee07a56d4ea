"""Mixtures of experts in CUDA C++ for Hopper, for many tokens and for one or two: csrc/cuda/experts.

Triton's kernels sort the pairs of many tokens and sum a token's experts, and do what lies between.
"""

from __future__ import annotations

import torch

from llm_kernels.cuda.library import invalid, native
from llm_kernels.expert_mlp import ExpertMlp
from llm_kernels.fp8_format import E4M3
from llm_kernels.triton import experts as triton_experts
from llm_kernels.triton.experts_sort import Blocks, sort_by_expert
from llm_kernels.triton.fp8_linear import empty_scales
from llm_kernels.triton.quantize_fp8 import quantize_fp8

BLOCK_ROWS = 256
"""Rows of a block of one expert: 128, or 256 for clusters that share weights; see grouped_gemm.h."""
LEAST_PAIRS = 60
"""Mean pairs an expert from which the kernels are used; below, Triton's narrower blocks are."""
LEAD = 2
"""Steps by which one warpgroup runs ahead of the other, so that one stores while the other multiplies."""
MOST_TOKENS = 2
"""Up to how many tokens each pair reads its expert's weights for itself."""
_MOST_CHOICES = 32
_MOST_SHARED_BYTES = 224 * 1024
_GATES = {"silu": 1, "gelu": 2, "gelu_tanh": 3}

_grouped_gemm = native("grouped_gemm")
_token_experts = native("token_experts")


def moe(
    out_TE: torch.Tensor, x_TE: torch.Tensor, weights_TK: torch.Tensor, ids_TK: torch.Tensor, mlp: ExpertMlp
) -> None:
    """CUDA back end of `ops.moe`: bfloat16; Triton's where the kernels take no such mixture."""
    mlp.check(out_TE, x_TE, weights_TK, ids_TK)
    num_tokens, num_pairs, num_experts = x_TE.shape[0], ids_TK.numel(), mlp.down.shape[0]
    if 0 < num_tokens <= MOST_TOKENS and num_experts > 1 and takes_tokens(out_TE, x_TE, ids_TK, mlp):
        moe_by_token(out_TE, x_TE, weights_TK.contiguous(), ids_TK.contiguous(), mlp)
    elif num_pairs > LEAST_PAIRS * num_experts and takes(x_TE, mlp):
        moe_by_expert(out_TE, x_TE, weights_TK.contiguous(), ids_TK.contiguous(), mlp)
    else:
        triton_experts.moe(out_TE, x_TE, weights_TK, ids_TK, mlp)


def takes(x_TE: torch.Tensor, mlp: ExpertMlp) -> bool:
    """Whether the kernels for many tokens do this: the usual gate, no biases, no scales of blocks."""
    unit = 8
    if mlp.up_scale is not None or mlp.down_scale is not None:
        unit = 16
        if any(scale is None or scale.ndim != 2 for scale in (mlp.up_scale, mlp.down_scale)):
            return False
    return _is_plain(mlp) and _fits(x_TE, mlp, unit)


def takes_tokens(out_TE: torch.Tensor, x_TE: torch.Tensor, ids_TK: torch.Tensor, mlp: ExpertMlp) -> bool:
    """Whether the kernels for one or two tokens do this: bfloat16 weights, the usual gate, no biases."""
    top_k, inner_size = ids_TK.shape[1], mlp.down.shape[2]
    if mlp.up_scale is not None or mlp.down_scale is not None or mlp.zero_experts:
        return False
    if top_k > _MOST_CHOICES or 4 * top_k * inner_size > _MOST_SHARED_BYTES:
        return False
    return _is_plain(mlp) and _fits(x_TE, mlp, 8) and _fits(out_TE, mlp, 8)


def _is_plain(mlp: ExpertMlp) -> bool:
    """Whether there is a gate of a kind that the kernels know, and nothing else to do."""
    has_options = mlp.limit is not None or mlp.alpha is not None or mlp.weight_input
    has_biases = mlp.up_bias is not None or mlp.down_bias is not None
    return mlp.gated and mlp.activation in _GATES and not has_options and not has_biases


def _fits(x_TE: torch.Tensor, mlp: ExpertMlp, unit: int) -> bool:
    """Whether rows, weights and scales lie where 16-byte accesses can read them."""
    if mlp.down.shape[1] % unit or mlp.down.shape[2] % unit:
        return False
    given = [mlp.up, mlp.down, mlp.up_scale, mlp.down_scale]
    if any(x is not None and (not x.is_contiguous() or x.data_ptr() % 16) for x in given):
        return False
    return x_TE.stride(1) == 1 and x_TE.stride(0) % 8 == 0 and x_TE.data_ptr() % 16 == 0


def moe_by_token(
    out_TE: torch.Tensor, x_TE: torch.Tensor, weights_TK: torch.Tensor, ids_TK: torch.Tensor, mlp: ExpertMlp
) -> None:
    """Each pair reads its expert's weights for itself; arguments as `takes_tokens` wants them.

    Raises:
        InvalidArgument: Shapes, dtypes or addresses that the kernels do not take.
    """
    inner = x_TE.new_empty(ids_TK.numel(), mlp.down.shape[2])
    try:
        _token_experts(
            out_TE, inner, x_TE, mlp.up, mlp.down, weights_TK, ids_TK, _GATES[mlp.activation], True
        )
    except ValueError as error:
        raise invalid(error) from None


def moe_by_expert(
    out_TE: torch.Tensor,
    x_TE: torch.Tensor,
    weights_TK: torch.Tensor,
    ids_TK: torch.Tensor,
    mlp: ExpertMlp,
    *,
    block_rows: int = BLOCK_ROWS,
) -> None:
    """Sorts the pairs by expert and multiplies block by block; arguments as `takes` wants them."""
    top_k, (num_experts, size, inner_size) = ids_TK.shape[1], mlp.down.shape
    blocks = sort_by_expert(ids_TK.view(-1), num_experts, block_rows)
    inner = x_TE.new_empty(blocks.pairs.numel(), inner_size)
    multiply(inner, x_TE, mlp.up, mlp.up_scale, blocks, ids_TK.numel(), top_k, gate=mlp.activation)
    outputs = x_TE.new_empty(ids_TK.numel(), size)
    multiply(outputs, inner, mlp.down, mlp.down_scale, blocks, ids_TK.numel(), top_k, weights=weights_TK)
    triton_experts.combine(out_TE, outputs, x_TE, weights_TK, ids_TK, num_experts, mlp.zero_experts)


def multiply(
    out: torch.Tensor,
    x: torch.Tensor,
    weight_NOI: torch.Tensor,
    scale_NO: torch.Tensor | None,
    blocks: Blocks,
    num_pairs: int,
    top_k: int,
    *,
    gate: str | None = None,
    weights: torch.Tensor | None = None,
    lead: int = LEAD,
) -> None:
    """One product of the sorted pairs with the weights of their experts, into `out`.

    Args:
        out: With a gate bfloat16 [B * block_m, O / 2], a row a place in the blocks (those of 64 rows without
            any pair are left as they are); else [P, O], a row a pair.
        x: With a gate [T, I], rows by token; else [B * block_m, I].
        weight_NOI: dtype of `x`, or float8_e4m3fn: then rows are quantized first.
        scale_NO: float32, the scales of float8_e4m3fn weights.
        blocks: The pairs, in blocks of 128 or 256.
        num_pairs: How many there are.
        top_k: Pairs a token.
        gate: Activation of the first half of O, by which the other half is multiplied; None: no such halves.
        weights: float32, a factor a pair; without a gate only.
        lead: See `LEAD`.

    Raises:
        InvalidArgument: Shapes, dtypes or addresses that the kernel does not take.
    """
    x_scale = None
    if scale_NO is not None:
        values = torch.empty(x.shape, dtype=E4M3, device=x.device)
        x_scale = empty_scales(x.shape[0], x.shape[1], scale_NO[0])
        quantize_fp8(values, x_scale, x, None)
        x = values
    number = 0 if gate is None else _GATES[gate]
    pairs, experts = blocks.pairs, blocks.experts
    try:
        _grouped_gemm(
            out,
            x,
            weight_NOI,
            x_scale,
            scale_NO,
            weights,
            pairs,
            experts,
            blocks.block_m,
            num_pairs,
            top_k,
            number,
            lead,
            True,
        )
    except ValueError as error:
        raise invalid(error) from None
