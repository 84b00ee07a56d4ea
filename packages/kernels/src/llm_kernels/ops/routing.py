"""The routing op: which experts each token goes to, and with what weight."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import torch

from llm_kernels.backends import by_row_backend, torch_backend, triton_backends
from llm_kernels.reference import routing as reference_routing
from llm_kernels.registry import PLAIN, Op
from llm_kernels.routing_rule import GroupScore, RoutingRule, Scoring

_Route: TypeAlias = Callable[
    [torch.Tensor, torch.Tensor | None, RoutingRule], tuple[torch.Tensor, torch.Tensor]
]

_MAX_EXPERTS = 1024
_SPARSE_MIXER = frozenset({"sparsemixer"})

ROUTE_EXPERTS: Op[_Route] = Op(
    "route_experts",
    [
        torch_backend(reference_routing.route_experts),
        by_row_backend("route_experts"),
        *triton_backends(
            "routing",
            "route_experts",
            lambda _dtype, size: size <= _MAX_EXPERTS,
            is_batch_invariant=True,
        ),
    ],
    default_size=128,
)


def route_experts(
    logits_TN: torch.Tensor,
    *,
    top_k: int,
    scoring: Scoring = "softmax",
    renormalize: bool = False,
    bias: torch.Tensor | None = None,
    groups: int | None = None,
    top_groups: int | None = None,
    group_score: GroupScore = "top2",
    scale: float = 1.0,
    renormalize_eps: float = 1e-20,
    jitter_eps: float = 0.01,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Choose `top_k` of N experts for each token, from the router's logits, in float32.

    The ids are those of `torch.topk` on the scores in float32, best first. Among equal scores the torch back
    end does what torch.topk does, Triton takes the lowest expert.

    Which options give which router:

    - Mixtral, MiniMax, HunYuan MoE, Mellum: softmax, renormalize. DBRX too where it normalises with p = 1.
    - Qwen2-MoE, Qwen3-MoE, Qwen3-Next, Qwen3.5-MoE, OLMoE, FlexOlmo: softmax, renormalize as norm_topk_prob
      says. Jamba: softmax.
    - gpt-oss, Granite MoE, JetMoE, Aria: softmax_after. Cohere2 MoE: softmax_after, or sigmoid_after with
      renormalize.
    - Llama 4: sigmoid_after, and `moe(..., weight_input=True)`.
    - DeepSeek V2: softmax, scale; "group_limited_greedy" adds groups, top_groups and group_score="max".
    - DeepSeek V3 and V3.2, Kimi K2 and Linear, GLM-4-MoE, GLM-4.5 to 5, dots1, NemotronH, EXAONE MoE, MiMo V2
      Flash, Solar Open, Bailing (Ling, Ring): sigmoid, bias (e_score_correction_bias), groups and top_groups
      with group_score="top2", renormalize as norm_topk_prob says, scale (routed_scaling_factor). Mistral 4:
      the same with softmax and no bias.
    - MiniMax M2, Step 3.7: sigmoid, bias, renormalize. AFMoE, HunYuan V3: those and scale. Laguna: those; cap
      the logits first.
    - LFM2 MoE: sigmoid, bias, renormalize as norm_topk_prob says with renormalize_eps=1e-6, scale.
    - Ernie 4.5 MoE: softmax, bias, renormalize. (The floor under its sum, 1e-12, matters to no real router.)
    - LongCat Flash: softmax over real and zero experts, bias, scale, and `moe(..., zero_experts=...)`.
    - DeepSeek V4: sqrtsoftplus, bias, renormalize, scale. (Its hash layers look ids up by token instead.)
    - PhiMoE: sparsemixer with top_k=2 and jitter_eps=router_jitter_noise.
    - Gemma 4: softmax, renormalize; then multiply the weights by per_expert_scale[ids].

    Args:
        logits_TN: [T, N], any float dtype. Cast or compute it in float32 where the model does.
        top_k: Experts a token.
        scoring: "softmax", "sigmoid" or "sqrtsoftplus" score all experts before the choice. "softmax_after"
            and "sigmoid_after" choose by the logits and score the chosen ones. "sparsemixer" is PhiMoE's.
        renormalize: Divide the chosen weights by their sum.
        bias: [N]: added for the choice only; the weights do without.
        groups: Experts lie in so many groups of equal size; only those of the best `top_groups` are eligible.
        top_groups: See `groups`.
        group_score: A group's worth: its "max", or the sum of its "top2".
        scale: Factor on the weights, last.
        renormalize_eps: Added to the sum before the division.
        jitter_eps: Of "sparsemixer": how near to the best logit others must lie to share its weight.

    Returns:
        Weights float32 [T, top_k] and ids int64 [T, top_k].

    Raises:
        InvalidArgument: Options, logits or bias do not fit together.
    """
    rule = RoutingRule(
        top_k=top_k,
        scoring=scoring,
        renormalize=renormalize,
        groups=groups,
        top_groups=top_groups,
        group_score=group_score,
        scale=scale,
        renormalize_eps=renormalize_eps,
        jitter_eps=jitter_eps,
    )
    features = _SPARSE_MIXER if scoring == "sparsemixer" else PLAIN
    route = ROUTE_EXPERTS.pick(logits_TN.device, logits_TN.dtype, logits_TN.shape[-1], features)
    return route(logits_TN, bias, rule)
