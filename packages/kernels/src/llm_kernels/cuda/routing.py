"""The router of mixtures of experts in CUDA C++ for Hopper: the wrapper of csrc/cuda/experts/router.cu."""

from __future__ import annotations

import torch

from llm_kernels.cuda.expert_choice import EXPERTS, SCORINGS, is_plain
from llm_kernels.cuda.library import invalid, native
from llm_kernels.ops.routing import composed
from llm_kernels.routing_rule import RoutingRule

FEWEST_TOKENS, MOST_TOKENS, MOST_WEIGHTS = 8, 128, 128 * 4096
"""Where the kernel is quicker than product and choice one by one, by measurement (docs/performance.md)."""

_route_by_linear = native("route_by_linear")


def route_by_linear(
    x_TE: torch.Tensor,
    router_NE: torch.Tensor,
    router_bias_N: torch.Tensor | None,
    bias_N: torch.Tensor | None,
    rule: RoutingRule,
) -> tuple[torch.Tensor, torch.Tensor]:
    """CUDA back end of `ops.route_by_linear`: bfloat16; product and choice one by one elsewhere."""
    is_quick = FEWEST_TOKENS <= x_TE.shape[0] <= MOST_TOKENS and router_NE.numel() <= MOST_WEIGHTS
    if not is_quick or not takes(x_TE, router_NE, router_bias_N, bias_N, rule):
        return composed(x_TE, router_NE, router_bias_N, bias_N, rule)
    return routed(x_TE, router_NE, router_bias_N, bias_N, rule)


def routed(
    x_TE: torch.Tensor,
    router_NE: torch.Tensor,
    router_bias_N: torch.Tensor | None,
    bias_N: torch.Tensor | None,
    rule: RoutingRule,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The kernel itself; arguments as `takes` wants them.

    Raises:
        InvalidArgument: Shapes, dtypes or addresses that the kernel does not take.
    """
    weights = torch.empty((x_TE.shape[0], rule.top_k), dtype=torch.float32, device=x_TE.device)
    ids = torch.empty(weights.shape, dtype=torch.int64, device=x_TE.device)
    number, eps, scale = SCORINGS[rule.scoring], float(rule.renormalize_eps), float(rule.scale)
    given = (weights, ids, x_TE, router_NE, router_bias_N, bias_N)
    try:
        _route_by_linear(*given, number, rule.renormalize, eps, scale, True)
    except ValueError as error:
        raise invalid(error) from None
    return weights, ids


def takes(
    x_TE: torch.Tensor,
    router_NE: torch.Tensor,
    router_bias_N: torch.Tensor | None,
    bias_N: torch.Tensor | None,
    rule: RoutingRule,
) -> bool:
    """Whether the kernel makes this choice: no groups, sizes it is compiled for."""
    if x_TE.shape[0] == 0 or not is_plain(bias_N, rule):
        return False
    if router_NE.shape[0] not in EXPERTS or x_TE.shape[1] % 32:
        return False
    if router_NE.dtype != x_TE.dtype or not router_NE.is_contiguous() or router_NE.data_ptr() % 16:
        return False
    if router_bias_N is not None and (router_bias_N.dtype != x_TE.dtype or not router_bias_N.is_contiguous()):
        return False
    return x_TE.stride(1) == 1 and x_TE.stride(0) % 8 == 0 and x_TE.data_ptr() % 16 == 0
