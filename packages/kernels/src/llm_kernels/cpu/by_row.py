"""Batch-invariant back ends on the CPU by way of the references, one row at a time; slow but general.

torch computes a row by itself in the same way each time: what differs between batches is where its vector
loops and the shares of its threads end, and which product its libraries choose for a shape.
"""

from __future__ import annotations

from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from llm_kernels.invariance import row_by_row
from llm_kernels.metadata import AttentionMetadata
from llm_kernels.reference import activation as reference_activation
from llm_kernels.reference import attention as reference_attention
from llm_kernels.reference import attention_input as reference_attention_input
from llm_kernels.reference import head_linear as reference_head_linear
from llm_kernels.reference import latent_attention as reference_latent_attention
from llm_kernels.reference import norm as reference_norm
from llm_kernels.reference import routing as reference_routing
from llm_kernels.reference import sampling as reference_sampling
from llm_kernels.routing_rule import RoutingRule
from llm_kernels.sampling_batch import SamplingBatch


@row_by_row()
def rms_norm(out: Tensor, x: Tensor, weight: Tensor | None, eps: float) -> None:
    """As `reference.norm.rms_norm`."""
    for row in range(len(x)):
        reference_norm.rms_norm(out[row : row + 1], x[row : row + 1], weight, eps)


@row_by_row()
def fused_add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor | None, eps: float) -> None:
    """As `reference.norm.fused_add_rms_norm`."""
    for row in range(len(x)):
        reference_norm.fused_add_rms_norm(x[row : row + 1], residual[row : row + 1], weight, eps)


@row_by_row()
def layer_norm(out: Tensor, x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float) -> None:
    """As `reference.norm.layer_norm`."""
    for row in range(len(x)):
        reference_norm.layer_norm(out[row : row + 1], x[row : row + 1], weight, bias, eps)


@row_by_row()
def fused_add_layer_norm(
    x: Tensor, residual: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float
) -> None:
    """As `reference.norm.fused_add_layer_norm`."""
    for row in range(len(x)):
        one = slice(row, row + 1)
        reference_norm.fused_add_layer_norm(x[one], residual[one], weight, bias, eps)


@row_by_row()
def activation(out: Tensor, x: Tensor, kind: str, parameters: Tensor | None) -> None:
    """As `reference.activation.activation`."""
    for row in range(len(x)):
        reference_activation.activation(out[row : row + 1], x[row : row + 1], kind, parameters)


@row_by_row()
def gated_activation(
    out: Tensor, gate_up: Tensor, kind: str, limit: float | None, alpha: float | None
) -> None:
    """As `reference.activation.gated_activation`."""
    for row in range(len(gate_up)):
        one = slice(row, row + 1)
        reference_activation.gated_activation(out[one], gate_up[one], kind, limit, alpha)


@row_by_row()
def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """As `reference.linear.linear`; rows are copied, so that all begin at the same alignment."""
    rows = x.reshape(-1, x.shape[-1])
    out = x.new_empty((len(rows), weight.shape[0]))
    for row in range(len(rows)):
        out[row : row + 1] = F.linear(rows[row : row + 1].clone(), weight, bias)
    return out.view(*x.shape[:-1], weight.shape[0])


@row_by_row()
def head_linear(x_THI: Tensor, weight_HOI: Tensor) -> Tensor:
    """As `reference.head_linear.head_linear`."""
    out_THO = x_THI.new_empty((*x_THI.shape[:2], weight_HOI.shape[1]))
    for row in range(len(x_THI)):
        out_THO[row : row + 1] = reference_head_linear.head_linear(x_THI[row : row + 1].clone(), weight_HOI)
    return out_THO


@row_by_row()
def rotate_write_kv(
    query_THD: Tensor,
    key_TKD: Tensor,
    value_TKV: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    positions: Tensor,
    slot_mapping: Tensor,
    *others: Tensor | float | bool | None,
) -> None:
    """As `reference.attention_input.rotate_write_kv`."""
    for row in range(len(query_THD)):
        one = slice(row, row + 1)
        reference_attention_input.rotate_write_kv(
            query_THD[one],
            key_TKD[one],
            value_TKV[one],
            key_cache,
            value_cache,
            positions[one],
            slot_mapping[one],
            *others,  # type: ignore[arg-type]  # the rest of the reference's arguments, in their order
        )


@row_by_row()
def route_experts(logits_TN: Tensor, bias_N: Tensor | None, rule: RoutingRule) -> tuple[Tensor, Tensor]:
    """As `reference.routing.route_experts`."""
    if len(logits_TN) == 0:
        return reference_routing.route_experts(logits_TN, bias_N, rule)
    ones = [slice(row, row + 1) for row in range(len(logits_TN))]
    rows = [reference_routing.route_experts(logits_TN[one], bias_N, rule) for one in ones]
    return torch.cat([weights for weights, _ in rows]), torch.cat([ids for _, ids in rows])


@row_by_row()
def paged_attention(
    out_THV: Tensor,
    query_THD: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    metadata: AttentionMetadata,
    *others: Tensor | float | bool | None,
) -> None:
    """As `reference.attention.paged_attention`, a token at a time."""
    for token, row in _tokens(metadata):
        reference_attention.paged_attention(
            out_THV[token : token + 1],
            query_THD[token : token + 1],
            key_cache,
            value_cache,
            row,
            *others,  # type: ignore[arg-type]  # the rest of the reference's arguments, in their order
        )


@row_by_row()
def latent_attention(
    out_THR: Tensor,
    query_THL: Tensor,
    latent_cache: Tensor,
    metadata: AttentionMetadata,
    scale: float,
    value_size: int,
) -> None:
    """As `reference.latent_attention.latent_attention`, a token at a time."""
    for token, row in _tokens(metadata):
        one = slice(token, token + 1)
        reference_latent_attention.latent_attention(
            out_THR[one], query_THL[one], latent_cache, row, scale, value_size
        )


def _tokens(metadata: AttentionMetadata) -> list[tuple[int, AttentionMetadata]]:
    """Each token with the metadata of a step that has it alone."""
    begins, contexts = metadata.cu_query_lens.tolist(), metadata.context_lens.tolist()
    ends = torch.tensor([0, 1], dtype=torch.int32)
    found = []
    for row, context in enumerate(contexts):
        for token in range(begins[row], begins[row + 1]):
            length = 0 if context == 0 else context - (begins[row + 1] - token) + 1
            alone = AttentionMetadata(
                cu_query_lens=ends,
                context_lens=torch.tensor([length], dtype=torch.int32),
                block_tables=metadata.block_tables[row : row + 1],
                slot_mapping=metadata.slot_mapping[token : token + 1],
                positions=metadata.positions[token : token + 1],
                num_decodes=1,
                max_query_len=1,
                max_context_len=max(length, 1),
                block_size=metadata.block_size,
            )
            found.append((token, alone))
    return found


@row_by_row()
def draw_tokens(
    logits: Tensor,
    temperature: Tensor,
    seeds: Tensor,
    positions: Tensor,
    thresholds: Tensor | None,
    all_greedy: bool,
) -> tuple[Tensor, Tensor]:
    """As `reference.sampling.draw_tokens`."""
    tokens = torch.empty(len(logits), dtype=torch.int64)
    faults = torch.empty(len(logits), dtype=torch.bool)
    for row in range(len(logits)):
        one = slice(row, row + 1)
        tokens[one], faults[one] = reference_sampling.draw_tokens(
            logits[one],
            temperature[one],
            seeds[one],
            positions[one],
            None if thresholds is None else thresholds[one],
            all_greedy,
        )
    return tokens, faults


@row_by_row()
def filter_thresholds(logits: Tensor, params: SamplingBatch) -> Tensor:
    """As `reference.sampling.filter_thresholds`; the flags of a row are its own."""
    kept = torch.full((len(logits),), -torch.inf)
    rows = range(len(logits)) if params.filtered_rows is None else params.filtered_rows.tolist()
    for row in rows:
        one = slice(row, row + 1)
        top_k = max(0, int(params.top_k[row]))
        has_top_p = bool(params.top_p[row] < 1)
        alone = replace(
            params,
            **{name: getattr(params, name)[one] for name in _COLUMNS},
            max_top_k=top_k,
            any_top_p=has_top_p,
            any_min_p=bool(params.min_p[row] > 0),
            every_top_p_has_top_k=top_k > 0 or not has_top_p,
            filtered_rows=None,
            penalties=None,
            logit_bias=None,
            banned=None,
        )
        kept[one] = reference_sampling.filter_thresholds(logits[one], alone)
    return kept


_COLUMNS = ("temperature", "top_p", "min_p", "top_k", "seeds", "positions")


@row_by_row()
def token_ranks(logits: Tensor, tokens: Tensor, num_top: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """As `reference.sampling.token_ranks`."""
    if len(logits) == 0:
        return reference_sampling.token_ranks(logits, tokens, num_top)
    ones = [slice(row, row + 1) for row in range(len(logits))]
    rows = [reference_sampling.token_ranks(logits[one], tokens[one], num_top) for one in ones]
    first, second, third, fourth = (torch.cat(parts) for parts in zip(*rows, strict=True))
    return first, second, third, fourth
