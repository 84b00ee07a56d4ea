"""Mixtures of experts of few pairs an expert in CUDA C++ for Hopper: csrc/cuda/experts/pairs_gemm.cu.

The kernels stream the weights and sort the pairs for themselves; the sum over a token's experts is Triton's.
"""

from __future__ import annotations

import torch

from llm_kernels.cuda.library import invalid, native
from llm_kernels.expert_mlp import ExpertMlp
from llm_kernels.triton import experts as triton_experts

MOST_PAIRS, MOST_EXPERTS = 4096, 512
"""What the kernels take at most: kMostPairs and kMostPairsExperts of pairs_gemm.h."""
GATES = {"silu": 1, "gelu": 2, "gelu_tanh": 3}
"""The activations that the kernels of experts know, by their numbers there."""

_pairs_gemm = native("pairs_gemm")


def moe_by_pair(
    out_TE: torch.Tensor, x_TE: torch.Tensor, weights_TK: torch.Tensor, ids_TK: torch.Tensor, mlp: ExpertMlp
) -> None:
    """Multiplies tiles of 64 pairs of an expert; contiguous weights and ids, a gate of `GATES`, no biases.

    Raises:
        InvalidArgument: Shapes, dtypes or addresses that the kernels do not take.
    """
    top_k, (num_experts, size, inner_size) = ids_TK.shape[1], mlp.down.shape
    ids = ids_TK.view(-1)
    inner = x_TE.new_empty(ids.numel(), inner_size)
    outputs = x_TE.new_empty(ids.numel(), size)
    try:
        _pairs_gemm(inner, x_TE, mlp.up, None, ids, top_k, GATES[mlp.activation], True)
        _pairs_gemm(outputs, inner, mlp.down, weights_TK, ids, top_k, 0, True)
    except ValueError as error:
        raise invalid(error) from None
    triton_experts.combine(out_TE, outputs, x_TE, weights_TK, ids_TK, num_experts, mlp.zero_experts)
