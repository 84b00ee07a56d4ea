"""Packed attention through torch's `scaled_dot_product_attention`, one call a row."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from llm_kernels.checks import check_scoring, check_varlen
from llm_kernels.packed_rows import Bias, PackedRow, bias_of, read_packed_rows
from llm_kernels.reference.attention_scores import Scoring


def varlen_attention(
    out_THV: torch.Tensor,
    query_THD: torch.Tensor,
    key_SKD: torch.Tensor,
    value_SKV: torch.Tensor,
    cu_query_lens: torch.Tensor,
    cu_key_lens: torch.Tensor,
    _max_query_len: int,
    _max_key_len: int,
    scale: float,
    causal: bool,
    sliding_window: int | None,
    _soft_cap: None,
    alibi_slopes: torch.Tensor | None,
    bias: Bias | None,
) -> None:
    """Back end of `ops.varlen_attention`; the registry keeps calls with a soft cap away."""
    check_varlen(out_THV, query_THD, key_SKD, value_SKV, cu_query_lens, cu_key_lens)
    check_scoring(query_THD, sliding_window, None, alibi_slopes=alibi_slopes)
    scoring = Scoring(scale=scale, sliding_window=sliding_window, alibi_slopes=alibi_slopes, causal=causal)
    for row in read_packed_rows(cu_query_lens, cu_key_lens, query_THD.shape[0], key_SKD.shape[0]):
        seeing = _first_seeing_query(row, scoring)
        out_THV[row.queries.start : row.queries.start + seeing] = 0
        if seeing < row.num_queries:
            _attend_row(out_THV, query_THD, key_SKD, value_SKV, row, seeing, scoring, bias)


def _first_seeing_query(row: PackedRow, scoring: Scoring) -> int:
    """The first query that sees a key: those before stand before the first key, and too far off."""
    if row.num_keys == 0:
        return row.num_queries
    ahead = row.num_queries - row.num_keys
    if not scoring.causal:
        ahead = 0 if scoring.sliding_window is None else ahead - scoring.sliding_window + 1
    return min(max(ahead, 0), row.num_queries)


def _attend_row(
    out_THV: torch.Tensor,
    query_THD: torch.Tensor,
    key_SKD: torch.Tensor,
    value_SKV: torch.Tensor,
    row: PackedRow,
    seeing: int,
    scoring: Scoring,
    bias: Bias | None,
) -> None:
    """One row, its queries from `seeing` on."""
    num_heads, num_kv_heads = query_THD.shape[1], key_SKD.shape[1]
    queries = slice(row.queries.start + seeing, row.queries.stop)
    query, key, value = (
        x.transpose(0, 1).unsqueeze(0) for x in (query_THD[queries], key_SKD[row.keys], value_SKV[row.keys])
    )
    is_triangle = scoring.causal and scoring.sliding_window is None and query.shape[2] == key.shape[2]
    bias_HQC = bias_of(bias, num_heads, row)
    mask = None
    if bias_HQC is not None or scoring.alibi_slopes is not None or not is_triangle:
        mask = _mask(row, seeing, scoring, bias_HQC, query.device)
    if mask is not None and mask.is_floating_point():
        # A bias rounded to a half type would change the weights.
        query, key, value = query.float(), key.float(), value.float()
    out = F.scaled_dot_product_attention(
        query,
        key,
        value,
        attn_mask=mask,
        is_causal=is_triangle and mask is None,
        scale=scoring.scale,
        enable_gqa=num_heads != num_kv_heads,
    )
    out_THV[queries] = out[0].transpose(0, 1).to(out_THV.dtype)


def _mask(
    row: PackedRow,
    seeing: int,
    scoring: Scoring,
    bias_HQC: torch.Tensor | None,
    device: torch.device,
) -> torch.Tensor | None:
    """What is added to the scores, [H, Q, C]; or where keys are seen, bool [Q, C]; or None for all."""
    key_pos = torch.arange(row.num_keys, device=device)
    query_pos = torch.arange(seeing, row.num_queries, device=device) + (row.num_keys - row.num_queries)
    seen = scoring.seen(query_pos, key_pos)
    added = None if bias_HQC is None else bias_HQC[:, seeing:]
    if scoring.alibi_slopes is not None:
        distance_QC = (query_pos.unsqueeze(-1) - key_pos).abs().float()
        slopes = -scoring.alibi_slopes.view(-1, 1, 1) * distance_QC
        added = slopes if added is None else added + slopes
    if added is None or seen is None:
        return seen if added is None else added
    return added.masked_fill(~seen, float("-inf"))
