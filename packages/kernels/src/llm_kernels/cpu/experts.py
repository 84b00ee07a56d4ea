"""Batch-invariant mixtures of experts on the CPU, of invariant linear layers and activations."""

from __future__ import annotations

from typing import cast

import torch

from llm_kernels.checks import check_gate_options
from llm_kernels.errors import InvalidArgument
from llm_kernels.expert_mlp import ExpertMlp
from llm_kernels.invariance import batch_invariant
from llm_kernels.ops.activation import ActivationKind, activation, gated_activation
from llm_kernels.ops.linear import linear


def moe(
    out_TE: torch.Tensor, x_TE: torch.Tensor, weights_TK: torch.Tensor, ids_TK: torch.Tensor, mlp: ExpertMlp
) -> None:
    """Batch-invariant back end of `ops.moe`: a token's experts are added in the order of its choice."""
    mlp.check(out_TE, x_TE, weights_TK, ids_TK)
    check_gate_options(mlp.activation, mlp.limit, mlp.alpha)
    num_experts, top_k = mlp.down.shape[0], ids_TK.shape[1]
    known = num_experts + mlp.zero_experts
    if ids_TK.numel() and not -1 <= int(ids_TK.min()) <= int(ids_TK.max()) < known:
        raise InvalidArgument("ids_TK", f"expected -1..{known - 1}")
    outputs_TKE = torch.zeros((*ids_TK.shape, x_TE.shape[1]), dtype=torch.float32)
    weights_TK = weights_TK.float()
    with batch_invariant():
        for expert in sorted(set(ids_TK.flatten().tolist())):
            tokens, choices = (ids_TK == expert).nonzero(as_tuple=True)
            weight_P1 = weights_TK[tokens, choices].unsqueeze(-1)
            if 0 <= expert < num_experts:
                outputs_TKE[tokens, choices] = _weighted(mlp, expert, x_TE[tokens], weight_P1)
            elif expert >= num_experts:
                outputs_TKE[tokens, choices] = x_TE[tokens].float() * weight_P1
    total_TE = torch.zeros_like(outputs_TKE[:, 0])
    for choice in range(top_k):
        total_TE += outputs_TKE[:, choice]
    out_TE.copy_(total_TE)


def _weighted(mlp: ExpertMlp, expert: int, x_PE: torch.Tensor, weight_P1: torch.Tensor) -> torch.Tensor:
    """The weighted outputs of one expert, float32."""
    kind = cast("ActivationKind", mlp.activation)
    if mlp.weight_input:
        x_PE = (x_PE.float() * weight_P1).to(x_PE.dtype)
    projected = linear(x_PE, mlp.up[expert], _bias(mlp.up_bias, expert, x_PE.dtype))
    if mlp.gated:
        inner = projected.new_empty((projected.shape[0], projected.shape[1] // 2))
        gated_activation(inner, projected, kind, limit=mlp.limit, alpha=mlp.alpha)
    else:
        inner = torch.empty_like(projected)
        activation(inner, projected, kind)
    y_PE = linear(inner, mlp.down[expert], _bias(mlp.down_bias, expert, x_PE.dtype)).float()
    return y_PE if mlp.weight_input else y_PE * weight_P1


def _bias(bias: torch.Tensor | None, expert: int, dtype: torch.dtype) -> torch.Tensor | None:
    return None if bias is None else bias[expert].to(dtype)
