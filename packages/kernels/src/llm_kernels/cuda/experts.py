"""Mixtures of experts for many tokens in CUDA C++ for Hopper: csrc/cuda/experts/grouped_gemm.cu.

The sum over a token's experts, few tokens, and what else the kernels do not take are Triton's.
"""

from __future__ import annotations

import torch

from llm_kernels.cuda.expert_sort import sort_by_expert
from llm_kernels.cuda.library import invalid, native
from llm_kernels.expert_mlp import ExpertMlp
from llm_kernels.fp8_format import E4M3
from llm_kernels.triton import experts as triton_experts
from llm_kernels.triton.experts_sort import Blocks
from llm_kernels.triton.fp8_linear import empty_scales
from llm_kernels.triton.quantize_fp8 import quantize_fp8

BLOCK_ROWS = 128
"""Rows of a block of one expert, kGroupedBlockRows of grouped_gemm.h."""
LEAST_PAIRS = 60
"""Mean pairs an expert from which the kernels are used; below, Triton's narrower blocks are."""
_GATES = {"silu": 1, "gelu": 2, "gelu_tanh": 3}

_grouped_gemm = native("grouped_gemm")


def moe(
    out_TE: torch.Tensor, x_TE: torch.Tensor, weights_TK: torch.Tensor, ids_TK: torch.Tensor, mlp: ExpertMlp
) -> None:
    """CUDA back end of `ops.moe`: bfloat16; Triton's where the kernels take no such mixture."""
    mlp.check(out_TE, x_TE, weights_TK, ids_TK)
    num_pairs, num_experts = ids_TK.numel(), mlp.down.shape[0]
    if num_pairs > LEAST_PAIRS * num_experts and takes(x_TE, mlp):
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


def moe_by_expert(
    out_TE: torch.Tensor,
    x_TE: torch.Tensor,
    weights_TK: torch.Tensor,
    ids_TK: torch.Tensor,
    mlp: ExpertMlp,
) -> None:
    """Sorts the pairs by expert and multiplies block by block; arguments as `takes` wants them."""
    top_k, (num_experts, size, inner_size) = ids_TK.shape[1], mlp.down.shape
    blocks = sort_by_expert(ids_TK.view(-1), num_experts, BLOCK_ROWS)
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
) -> None:
    """One product of the sorted pairs with the weights of their experts, into `out`.

    Args:
        out: With a gate bfloat16 [B * 128, O / 2], a row a place in the blocks (those of 64 rows without
            any pair are left as they are); else [P, O], a row a pair.
        x: With a gate [T, I], rows by token; else [B * 128, I].
        weight_NOI: dtype of `x`, or float8_e4m3fn: then rows are quantized first.
        scale_NO: float32, the scales of float8_e4m3fn weights.
        blocks: The pairs, in blocks of 128.
        num_pairs: How many there are.
        top_k: Pairs a token.
        gate: Activation of the first half of O, by which the other half is multiplied; None: no such halves.
        weights: float32, a factor a pair; without a gate only.

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
            num_pairs,
            top_k,
            number,
            True,
        )
    except ValueError as error:
        raise invalid(error) from None
