"""Scores, masks and weights of attention in torch, float32; knows nothing about caches or rows."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True, kw_only=True)
class Scoring:
    """How scores come about and which keys a query sees; the fields are options of `ops.paged_attention`."""

    scale: float
    sliding_window: int | None = None
    soft_cap: float | None = None
    chunk: int | None = None
    sinks: torch.Tensor | None = None
    alibi_slopes: torch.Tensor | None = None
    causal: bool = True
    distance_bias: torch.Tensor | None = None

    def first_key(self, position: int) -> int:
        """The first key that the query at `position` and those after it see."""
        first = 0
        if self.sliding_window is not None:
            first = max(first, position + 1 - self.sliding_window)
        if self.chunk is not None:
            first = max(first, position // self.chunk * self.chunk)
        return first

    def seen(self, query_pos_BQ: torch.Tensor, key_pos_BC: torch.Tensor) -> torch.Tensor | None:
        """True where the query sees the key, [B, Q, C]; None where each sees all."""
        query_pos, key_pos = query_pos_BQ.unsqueeze(-1), key_pos_BC.unsqueeze(-2)
        seen = None
        if self.causal:
            seen = key_pos <= query_pos
        if self.sliding_window is not None:
            near = query_pos - key_pos < self.sliding_window
            near = near if self.causal else near & (key_pos - query_pos < self.sliding_window)
            seen = near if seen is None else seen & near
        if self.chunk is not None:
            same = key_pos >= query_pos // self.chunk * self.chunk
            seen = same if seen is None else seen & same
        return seen


def attend(
    query_BQHD: torch.Tensor,
    key_BCKD: torch.Tensor,
    value_BCKV: torch.Tensor,
    query_pos_BQ: torch.Tensor,
    key_pos_BC: torch.Tensor,
    scoring: Scoring,
    held_BC: torch.Tensor | None = None,
    bias_HQC: torch.Tensor | None = None,
) -> torch.Tensor:
    """Attention of a batch of rows; float32 [B, Q, H, V].

    A query that sees no key yields zeros.

    Args:
        query_BQHD: Queries.
        key_BCKD: Keys; query head h reads KV head h // (H / K).
        value_BCKV: Values.
        query_pos_BQ: int64, positions of the queries.
        key_pos_BC: int64, positions of the keys.
        scoring: How scores come about.
        held_BC: bool, false for keys that only pad the batch.
        bias_HQC: Added to the scores.
    """
    batch, num_queries, num_heads, head_size = query_BQHD.shape
    num_kv_heads, num_keys = key_BCKD.shape[2], key_BCKD.shape[1]
    group = num_heads // num_kv_heads
    # The grouped heads of a KV head and the queries are the rows of one matrix.
    query_BKMD = query_BQHD.float().view(batch, num_queries, num_kv_heads, group, head_size)
    query_BKMD = query_BKMD.permute(0, 2, 3, 1, 4).reshape(batch, num_kv_heads, -1, head_size)
    scores = query_BKMD @ key_BCKD.float().permute(0, 2, 3, 1)
    scores = scores.view(batch, num_heads, num_queries, num_keys).mul_(scoring.scale)
    if scoring.soft_cap is not None:
        scores = scores.div_(scoring.soft_cap).tanh_().mul_(scoring.soft_cap)
    if scoring.alibi_slopes is not None:
        distance_BQC = (query_pos_BQ.unsqueeze(-1) - key_pos_BC.unsqueeze(-2)).abs().float()
        scores -= scoring.alibi_slopes.float().view(-1, 1, 1) * distance_BQC.unsqueeze(1)
    if scoring.distance_bias is not None:
        longest = scoring.distance_bias.shape[1] - 1
        distance_BQC = (query_pos_BQ.unsqueeze(-1) - key_pos_BC.unsqueeze(-2)).clamp(0, longest)
        scores += scoring.distance_bias.float()[:, distance_BQC].transpose(0, 1)
    if bias_HQC is not None:
        scores += bias_HQC
    seen = scoring.seen(query_pos_BQ, key_pos_BC)
    if held_BC is not None:
        seen = held_BC.unsqueeze(1) if seen is None else seen & held_BC.unsqueeze(1)
    if seen is not None:
        scores = scores.masked_fill_(~seen.unsqueeze(1), float("-inf"))
    weights_BHQC = _weights(scores, scoring.sinks)
    weights_BKMC = weights_BHQC.view(batch, num_kv_heads, group * num_queries, num_keys)
    out_BKMV = weights_BKMC @ value_BCKV.float().transpose(1, 2)
    out_BHQV = out_BKMV.view(batch, num_heads, num_queries, value_BCKV.shape[-1])
    return out_BHQV.transpose(1, 2)


def _weights(scores_BHQC: torch.Tensor, sinks: torch.Tensor | None) -> torch.Tensor:
    """Softmax over the keys; a head's sink enters the denominator only. All -inf gives zeros."""
    best = scores_BHQC.amax(dim=-1, keepdim=True)
    sink = None
    if sinks is not None:
        sink = sinks.float().view(-1, 1, 1)
        best = torch.maximum(best, sink)
    best = best.masked_fill(best == float("-inf"), 0.0)
    weights = scores_BHQC.sub_(best).exp_()
    norm = weights.sum(dim=-1, keepdim=True)
    if sink is not None:
        norm = norm + (sink - best).exp()
    return weights.div_(norm.masked_fill(norm == 0.0, 1.0))
