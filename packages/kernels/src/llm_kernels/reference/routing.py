"""The choice of experts in torch, in float32; the meaning of `route_experts`."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from llm_kernels.errors import InvalidArgument
from llm_kernels.routing_rule import RoutingRule


def route_experts(
    logits_TN: torch.Tensor, bias_N: torch.Tensor | None, rule: RoutingRule
) -> tuple[torch.Tensor, torch.Tensor]:
    """Reference of `ops.route_experts`."""
    rule.check(logits_TN, bias_N)
    logits_TN = logits_TN.float()
    if rule.scoring == "sparsemixer":
        return _sparse_mixer(logits_TN, rule)
    if rule.scoring.endswith("_after"):
        chosen, ids = torch.topk(logits_TN if bias_N is None else logits_TN + bias_N, rule.top_k, dim=-1)
        if bias_N is not None:
            chosen = logits_TN.gather(-1, ids)
        weights = chosen.softmax(dim=-1) if rule.scoring == "softmax_after" else chosen.sigmoid()
    else:
        scores_TN = _scores(logits_TN, rule.scoring)
        choice_TN = scores_TN if bias_N is None else scores_TN + bias_N
        if rule.groups is not None:
            choice_TN = _within_top_groups(choice_TN, rule)
        ids = torch.topk(choice_TN, rule.top_k, dim=-1).indices
        weights = scores_TN.gather(-1, ids)
    if rule.renormalize:
        weights = weights / (weights.sum(dim=-1, keepdim=True) + rule.renormalize_eps)
    return (weights if rule.scale == 1.0 else weights * rule.scale), ids


def _scores(logits_TN: torch.Tensor, scoring: str) -> torch.Tensor:
    if scoring == "softmax":
        return logits_TN.softmax(dim=-1)
    if scoring == "sigmoid":
        return logits_TN.sigmoid()
    if scoring == "sqrtsoftplus":
        return F.softplus(logits_TN).sqrt()
    raise InvalidArgument("scoring", f"unknown: {scoring!r}")


def _within_top_groups(choice_TN: torch.Tensor, rule: RoutingRule) -> torch.Tensor:
    """The scores with those outside the best groups at minus infinity."""
    assert rule.groups is not None
    assert rule.top_groups is not None
    grouped_TGM = choice_TN.view(choice_TN.shape[0], rule.groups, choice_TN.shape[1] // rule.groups)
    if rule.group_score == "max":
        group_scores_TG = grouped_TGM.amax(dim=-1)
    else:
        group_scores_TG = grouped_TGM.topk(2, dim=-1).values.sum(dim=-1)
    best = torch.topk(group_scores_TG, rule.top_groups, dim=-1).indices
    outside_TG = torch.ones_like(group_scores_TG, dtype=torch.bool).scatter_(-1, best, value=False)
    return grouped_TGM.masked_fill(outside_TG.unsqueeze(-1), float("-inf")).view_as(choice_TN)


def _sparse_mixer(logits_TN: torch.Tensor, rule: RoutingRule) -> tuple[torch.Tensor, torch.Tensor]:
    """Each of two rounds takes the best expert left; its weight is its share among those close to it."""
    left, weights, ids = logits_TN, [], []
    for _ in range(rule.top_k):
        best, index = left.max(dim=-1, keepdim=True)
        # The distance is relative to the expert's own logit where that is larger, also for one already taken.
        far = (best - logits_TN) / torch.maximum(logits_TN.abs(), best) > 2 * rule.jitter_eps
        weights.append(left.masked_fill(far, float("-inf")).softmax(dim=-1).gather(-1, index))
        ids.append(index)
        left = left.scatter(-1, index, float("-inf"))
    return torch.cat(weights, dim=-1), torch.cat(ids, dim=-1)
