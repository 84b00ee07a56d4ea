"""The choice of experts in one Triton kernel, a program a token; among equals the lowest expert wins."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from llm_kernels.checks import check_inner_contiguous
from llm_kernels.routing_rule import RoutingRule
from llm_kernels.triton.activation import softplus
from llm_kernels.triton.dependent_launch import launch_options, let_later_start, wait_for_earlier
from llm_kernels.triton.launch_sizes import power_of_2


@triton.jit  # type: ignore[untyped-decorator]
def _within_top_groups(
    choice: tl.tensor,
    expert: tl.tensor,
    group_size: tl.tensor,
    GROUPS: tl.constexpr,
    TOP_GROUPS: tl.constexpr,
    BY_TOP2: tl.constexpr,
    G_PAD: tl.constexpr,
) -> tl.tensor:
    """The scores with those outside the best groups at minus infinity."""
    minus_infinity = float("-inf")
    group = expert // group_size
    groups = tl.arange(0, G_PAD)
    worths = tl.full([G_PAD], minus_infinity, tl.float32)
    for g in tl.static_range(GROUPS):
        own = tl.where(group == g, choice, minus_infinity)
        worth = tl.max(own, axis=0)
        if BY_TOP2:
            worth += tl.max(tl.where(expert == tl.argmax(own, axis=0), minus_infinity, own), axis=0)
        worths = tl.where(groups == g, worth, worths)
    kept = expert < 0
    for _ in tl.static_range(TOP_GROUPS):
        best = tl.argmax(worths, axis=0)
        kept = kept | (group == best)
        worths = tl.where(groups == best, minus_infinity, worths)
    return tl.where(kept, choice, minus_infinity)


@triton.jit  # type: ignore[untyped-decorator]
def _route_kernel(
    logits: tl.tensor,
    bias: tl.tensor,
    weights: tl.tensor,
    ids: tl.tensor,
    logits_stride: tl.tensor,
    num_experts: tl.tensor,
    renormalize_eps: tl.tensor,
    scale: tl.tensor,
    SCORING: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    RENORMALIZE: tl.constexpr,
    GROUPS: tl.constexpr,
    TOP_GROUPS: tl.constexpr,
    BY_TOP2: tl.constexpr,
    G_PAD: tl.constexpr,
    K: tl.constexpr,
    K_PAD: tl.constexpr,
    N_PAD: tl.constexpr,
    PDL: tl.constexpr,
) -> None:
    minus_infinity = float("-inf")
    token = tl.program_id(0).to(tl.int64)
    expert = tl.arange(0, N_PAD)
    inside = expert < num_experts
    let_later_start(PDL)
    wait_for_earlier(PDL)
    logit = tl.load(logits + token * logits_stride + expert, mask=inside, other=minus_infinity).to(tl.float32)
    if SCORING == "softmax":
        power = tl.exp(logit - tl.max(logit, axis=0))
        score = power / tl.sum(power, axis=0)
    elif SCORING == "sigmoid":
        score = tl.sigmoid(logit)
    elif SCORING == "sqrtsoftplus":
        score = tl.sqrt(softplus(logit))
    else:
        score = logit
    choice = score
    if HAS_BIAS:
        choice += tl.load(bias + expert, mask=inside, other=0.0).to(tl.float32)
    choice = tl.where(inside & (choice == choice), choice, minus_infinity)
    if GROUPS > 0:
        size = num_experts // GROUPS
        choice = _within_top_groups(choice, expert, size, GROUPS, TOP_GROUPS, BY_TOP2, G_PAD)
    lane = tl.arange(0, K_PAD)
    chosen = tl.zeros([K_PAD], tl.int32)
    weight = tl.full([K_PAD], minus_infinity, tl.float32)
    for k in tl.static_range(K):
        best = tl.argmax(choice, axis=0)
        chosen = tl.where(lane == k, best, chosen)
        weight = tl.where(lane == k, tl.sum(tl.where(expert == best, score, 0.0), axis=0), weight)
        choice = tl.where(expert == best, minus_infinity, choice)
    if SCORING == "softmax_after":
        power = tl.exp(weight - tl.max(weight, axis=0))
        weight = power / tl.sum(power, axis=0)
    elif SCORING == "sigmoid_after":
        weight = tl.sigmoid(weight)
    if RENORMALIZE:
        weight = weight / (tl.sum(tl.where(lane < K, weight, 0.0), axis=0) + renormalize_eps)
    at = token * K + lane
    tl.store(weights + at, weight * scale, mask=lane < K)
    tl.store(ids + at, chosen.to(tl.int64), mask=lane < K)


def route_experts(
    logits_TN: torch.Tensor, bias_N: torch.Tensor | None, rule: RoutingRule
) -> tuple[torch.Tensor, torch.Tensor]:
    """Triton back end of `ops.route_experts`, without sparsemixer."""
    rule.check(logits_TN, bias_N)
    check_inner_contiguous(logits_TN=logits_TN)
    num_tokens, num_experts = logits_TN.shape
    weights = logits_TN.new_empty(num_tokens, rule.top_k, dtype=torch.float32)
    ids = logits_TN.new_empty(num_tokens, rule.top_k, dtype=torch.int64)
    if num_tokens == 0:
        return weights, ids
    padded = power_of_2(num_experts)
    groups = rule.groups or 0
    _route_kernel[(num_tokens,)](
        logits_TN,
        logits_TN if bias_N is None else bias_N.contiguous(),
        weights,
        ids,
        logits_TN.stride(0),
        num_experts,
        rule.renormalize_eps,
        float(rule.scale),
        SCORING=rule.scoring,
        HAS_BIAS=bias_N is not None,
        RENORMALIZE=rule.renormalize,
        GROUPS=groups,
        TOP_GROUPS=rule.top_groups or 0,
        BY_TOP2=rule.group_score == "top2",
        G_PAD=power_of_2(max(groups, 1)),
        K=rule.top_k,
        K_PAD=power_of_2(rule.top_k),
        N_PAD=padded,
        num_warps=1 if padded <= 256 else 4,
        **launch_options(logits_TN.device),
    )
    return weights, ids
