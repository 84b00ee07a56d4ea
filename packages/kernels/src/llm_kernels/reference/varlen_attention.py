"""Attention over packed rows without a cache in torch, float32 inside; the meaning of `varlen_attention`."""

from __future__ import annotations

import torch

from llm_kernels.checks import check_scoring, check_varlen
from llm_kernels.packed_rows import Bias, PackedRow, bias_of, read_packed_rows
from llm_kernels.reference.attention_scores import Scoring, attend

_MAX_ELEMENTS = 1 << 24


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
    soft_cap: float | None,
    alibi_slopes: torch.Tensor | None,
    bias: Bias | None,
) -> None:
    """Reference of `ops.varlen_attention`. Reads the lengths on the host, so it waits for the device."""
    check_varlen(out_THV, query_THD, key_SKD, value_SKV, cu_query_lens, cu_key_lens)
    check_scoring(query_THD, sliding_window, soft_cap, alibi_slopes=alibi_slopes)
    scoring = Scoring(
        scale=scale,
        sliding_window=sliding_window,
        soft_cap=soft_cap,
        alibi_slopes=alibi_slopes,
        causal=causal,
    )
    for row in read_packed_rows(cu_query_lens, cu_key_lens, query_THD.shape[0], key_SKD.shape[0]):
        if row.num_queries == 0:
            continue
        if row.num_keys == 0:
            out_THV[row.queries] = 0
            continue
        _attend_row(out_THV, query_THD, key_SKD, value_SKV, row, scoring, bias)


def _attend_row(
    out_THV: torch.Tensor,
    query_THD: torch.Tensor,
    key_SKD: torch.Tensor,
    value_SKV: torch.Tensor,
    row: PackedRow,
    scoring: Scoring,
    bias: Bias | None,
) -> None:
    """One row, in blocks of its queries."""
    device, num_heads = query_THD.device, query_THD.shape[1]
    bias_HQC = bias_of(bias, num_heads, row)
    key_CKD, value_CKV = key_SKD[None, row.keys].float(), value_SKV[None, row.keys].float()
    key_pos = torch.arange(row.num_keys, device=device)[None]
    block = max(1, _MAX_ELEMENTS // (num_heads * row.num_keys))
    for begin in range(0, row.num_queries, block):
        end = min(begin + block, row.num_queries)
        queries = slice(row.queries.start + begin, row.queries.start + end)
        query_pos = torch.arange(begin, end, device=device)[None] + (row.num_keys - row.num_queries)
        out_THV[queries] = attend(
            query_THD[None, queries],
            key_CKD,
            value_CKV,
            query_pos,
            key_pos,
            scoring,
            bias_HQC=None if bias_HQC is None else bias_HQC[:, begin:end],
        )[0].to(out_THV.dtype)
