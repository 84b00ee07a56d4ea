"""Matrix products and MLPs whose weights depend on the row, in torch; the meaning of the expert ops.

Like `linear`, products are torch's own in the dtype of the operands, of e4m3 weights in float32; activations
and sums over experts are float32.
The loops run over the experts that are hit, so a few tokens read a few experts' weights, each once.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F

from llm_kernels.checks import check_gate_options, check_grouped_linear
from llm_kernels.errors import InvalidArgument
from llm_kernels.expert_mlp import ExpertMlp
from llm_kernels.reference.activation import gated, ungated
from llm_kernels.reference.quantize_fp8 import dequantize_weight

_PAIRS_AT_ONCE = 1024


def grouped_linear(
    out_PO: torch.Tensor,
    x_PI: torch.Tensor,
    weight_NOI: torch.Tensor,
    expert_ids: torch.Tensor,
    bias_NO: torch.Tensor | None,
) -> None:
    """Reference of `ops.grouped_linear`."""
    check_grouped_linear(out_PO, x_PI, weight_NOI, expert_ids, bias_NO)
    groups = _rows_by_expert("expert_ids", expert_ids, weight_NOI.shape[0])
    out_PO.masked_fill_((expert_ids < 0).unsqueeze(-1), 0)
    for expert, rows in groups:
        out_PO[rows] = F.linear(x_PI[rows], weight_NOI[expert], _bias(bias_NO, expert, x_PI.dtype))


def moe(
    out_TE: torch.Tensor, x_TE: torch.Tensor, weights_TK: torch.Tensor, ids_TK: torch.Tensor, mlp: ExpertMlp
) -> None:
    """Reference of `ops.moe`."""
    mlp.check(out_TE, x_TE, weights_TK, ids_TK)
    check_gate_options(mlp.activation, mlp.limit, mlp.alpha)
    num_real, top_k = mlp.down.shape[0], ids_TK.shape[1]
    groups = _rows_by_expert("ids_TK", ids_TK.flatten(), num_real + mlp.zero_experts)
    weights_TK = weights_TK.float()
    if mlp.zero_experts:
        share_T = torch.where(ids_TK >= num_real, weights_TK, 0.0).sum(dim=-1, keepdim=True)
        total_TE = x_TE.float() * share_T
    else:
        total_TE = torch.zeros(x_TE.shape, dtype=torch.float32, device=x_TE.device)
    for run in _runs([(expert, pairs) for expert, pairs in groups if expert < num_real]):
        pairs = torch.cat([pairs for _, pairs in run])
        tokens, weight_P1 = pairs // top_k, weights_TK.flatten()[pairs].unsqueeze(-1)
        x_PE = x_TE[tokens]
        if mlp.weight_input:
            x_PE = (x_PE.float() * weight_P1).to(x_PE.dtype)
        y_PE = _experts(mlp, x_PE, [(expert, pairs.numel()) for expert, pairs in run]).float()
        total_TE.index_add_(0, tokens, y_PE if mlp.weight_input else y_PE * weight_P1)
    out_TE.copy_(total_TE)


def _experts(mlp: ExpertMlp, x_PE: torch.Tensor, counts: list[tuple[int, int]]) -> torch.Tensor:
    """The MLPs of rows that lie in order of their experts: `counts` rows of each."""
    projected = _linear_in_order(x_PE, mlp.up, mlp.up_scale, mlp.up_bias, counts)
    if mlp.gated:
        inner = gated(projected, mlp.activation, mlp.limit, mlp.alpha)
    else:
        inner = ungated(projected, mlp.activation)
    return _linear_in_order(inner.to(x_PE.dtype), mlp.down, mlp.down_scale, mlp.down_bias, counts)


def _linear_in_order(
    x_PI: torch.Tensor,
    weight_NOI: torch.Tensor,
    scale: torch.Tensor | None,
    bias_NO: torch.Tensor | None,
    counts: list[tuple[int, int]],
) -> torch.Tensor:
    out, start = x_PI.new_empty(x_PI.shape[0], weight_NOI.shape[1]), 0
    for expert, count in counts:
        rows = slice(start, start + count)
        if scale is None:
            out[rows] = F.linear(x_PI[rows], weight_NOI[expert], _bias(bias_NO, expert, x_PI.dtype))
        else:
            weight = dequantize_weight(weight_NOI[expert], scale[expert])
            out[rows] = F.linear(x_PI[rows].float(), weight, _bias(bias_NO, expert, torch.float32))
        start += count
    return out


def _runs(groups: list[tuple[int, torch.Tensor]]) -> Iterator[list[tuple[int, torch.Tensor]]]:
    """Experts in lots: few passes over the small operations, and bounded memory for the pairs."""
    run: list[tuple[int, torch.Tensor]] = []
    for expert, pairs in groups:
        run.append((expert, pairs))
        if sum(pairs.numel() for _, pairs in run) >= _PAIRS_AT_ONCE:
            yield run
            run = []
    if run:
        yield run


def _bias(bias: torch.Tensor | None, expert: int, dtype: torch.dtype) -> torch.Tensor | None:
    return None if bias is None else bias[expert].to(dtype)


def _rows_by_expert(field: str, ids: torch.Tensor, num_experts: int) -> list[tuple[int, torch.Tensor]]:
    """Each expert that has rows, with the indices of its rows in order; ids of -1 belong to none."""
    if ids.numel() == 0:
        return []
    order = torch.argsort(ids, stable=True)
    experts, counts = torch.unique_consecutive(ids[order], return_counts=True)
    listed = experts.tolist()
    if listed[0] < -1 or listed[-1] >= num_experts:
        wrong = listed[0] if listed[0] < -1 else listed[-1]
        raise InvalidArgument(field, f"expected -1..{num_experts - 1}, found {wrong}")
    rows = torch.split(order, counts.tolist())
    return [(expert, own) for expert, own in zip(listed, rows, strict=True) if expert >= 0]
