"""The choice of experts by logits in CUDA C++ for Hopper: the wrapper of csrc/cuda/experts/router.cu."""

from __future__ import annotations

import torch

from llm_kernels.cuda.library import invalid, native
from llm_kernels.routing_rule import RoutingRule
from llm_kernels.triton.routing import route_experts as triton_route_experts

MOST_CHOICES = 32
EXPERTS = frozenset({64, 128, 256, 512})
"""Numbers of experts that the kernels are compiled for."""
SCORINGS = {"softmax": 0, "sigmoid": 1, "softmax_after": 2}
"""Those the kernels know, by their numbers there."""

_choose_experts = native("choose_experts")


def route_experts(
    logits_TN: torch.Tensor, bias_N: torch.Tensor | None, rule: RoutingRule
) -> tuple[torch.Tensor, torch.Tensor]:
    """CUDA back end of `ops.route_experts`; Triton's where the kernel makes no such choice."""
    num_tokens, num_experts = logits_TN.shape
    if not num_tokens or num_experts not in EXPERTS or not is_plain(bias_N, rule) or logits_TN.stride(1) != 1:
        return triton_route_experts(logits_TN, bias_N, rule)
    weights = torch.empty((num_tokens, rule.top_k), dtype=torch.float32, device=logits_TN.device)
    ids = torch.empty(weights.shape, dtype=torch.int64, device=logits_TN.device)
    number, eps, scale = SCORINGS[rule.scoring], float(rule.renormalize_eps), float(rule.scale)
    try:
        _choose_experts(weights, ids, logits_TN, bias_N, number, rule.renormalize, eps, scale, True)
    except ValueError as error:
        raise invalid(error) from None
    return weights, ids


def is_plain(bias_N: torch.Tensor | None, rule: RoutingRule) -> bool:
    """Whether the kernels score and choose in this way."""
    if rule.scoring not in SCORINGS or rule.groups is not None or rule.top_k > MOST_CHOICES:
        return False
    return bias_N is None or (bias_N.dtype == torch.float32 and bias_N.is_contiguous())
