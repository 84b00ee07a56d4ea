"""Matrix products and MLPs whose weights depend on the row, in torch; the meaning of the expert ops.

Like `linear`, products are torch's own in the dtype of the operands; activations and sums over experts are
float32.
The loops run over the experts that are hit, so a few tokens read a few experts' weights, each once.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F

from llm_kernels.checks import check_grouped_linear
from llm_kernels.errors import InvalidArgument
from llm_kernels.expert_mlp import ExpertMlp
from llm_kernels.reference.activation import gated, ungated


def grouped_linear(
    out_PO: torch.Tensor,
    x_PI: torch.Tensor,
    weight_NOI: torch.Tensor,
    expert_ids: torch.Tensor,
    bias_NO: torch.Tensor | None,
) -> None:
    """Reference of `ops.grouped_linear`."""
    check_grouped_linear(out_PO, x_PI, weight_NOI, expert_ids, bias_NO)
    out_PO.masked_fill_((expert_ids < 0).unsqueeze(-1), 0)
    for expert, rows in _rows_by_expert("expert_ids", expert_ids, weight_NOI.shape[0]):
        out_PO[rows] = F.linear(x_PI[rows], weight_NOI[expert], _bias(bias_NO, expert, x_PI.dtype))


def moe(
    out_TE: torch.Tensor, x_TE: torch.Tensor, weights_TK: torch.Tensor, ids_TK: torch.Tensor, mlp: ExpertMlp
) -> None:
    """Reference of `ops.moe`."""
    mlp.check(out_TE, x_TE, weights_TK, ids_TK)
    top_k = ids_TK.shape[1]
    weights = weights_TK.float().flatten()
    total_TE = torch.zeros(x_TE.shape, dtype=torch.float32, device=x_TE.device)
    num_real = mlp.down.shape[0]
    for expert, pairs in _rows_by_expert("ids_TK", ids_TK.flatten(), num_real + mlp.zero_experts):
        tokens = pairs // top_k if top_k > 1 else pairs
        weight = weights[pairs].unsqueeze(-1)
        if expert >= num_real:
            total_TE.index_add_(0, tokens, x_TE[tokens].float() * weight)
            continue
        x = x_TE[tokens]
        if mlp.weight_input:
            x = (x.float() * weight).to(x.dtype)
        y = _expert(mlp, expert, x).float()
        total_TE.index_add_(0, tokens, y if mlp.weight_input else y * weight)
    out_TE.copy_(total_TE)


def _expert(mlp: ExpertMlp, expert: int, x: torch.Tensor) -> torch.Tensor:
    inner = F.linear(x, mlp.up[expert], _bias(mlp.up_bias, expert, x.dtype))
    if mlp.gated:
        inner = gated(inner, mlp.activation, mlp.limit, mlp.alpha).to(x.dtype)
    else:
        inner = ungated(inner, mlp.activation).to(x.dtype)
    return F.linear(inner, mlp.down[expert], _bias(mlp.down_bias, expert, x.dtype))


def _bias(bias: torch.Tensor | None, expert: int, dtype: torch.dtype) -> torch.Tensor | None:
    return None if bias is None else bias[expert].to(dtype)


def _rows_by_expert(field: str, ids: torch.Tensor, num_experts: int) -> Iterator[tuple[int, torch.Tensor]]:
    """Each expert that has rows, with the indices of its rows in order; ids of -1 belong to none."""
    if ids.numel() == 0:
        return
    order = torch.argsort(ids, stable=True)
    experts, counts = torch.unique_consecutive(ids[order], return_counts=True)
    listed = experts.tolist()
    if listed[0] < -1 or listed[-1] >= num_experts:
        wrong = listed[0] if listed[0] < -1 else listed[-1]
        raise InvalidArgument(field, f"expected -1..{num_experts - 1}, found {wrong}")
    for expert, rows in zip(listed, torch.split(order, counts.tolist()), strict=True):
        if expert >= 0:
            yield expert, rows
