"""The choice of experts against the routers of transformers' models, and by hand."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from llm_kernels import ops
from llm_kernels.errors import InvalidArgument

HIDDEN, EXPERTS, TOP_K, TOKENS = 24, 16, 4, 50


def _randn(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def _config(**extra):
    sizes = {
        "hidden_size": HIDDEN,
        "num_experts_per_tok": TOP_K,
        "num_experts": EXPERTS,
        "num_local_experts": EXPERTS,
        "n_routed_experts": EXPERTS,
        "norm_topk_prob": True,
        "routed_scaling_factor": 2.5,
        "route_scale": 2.5,
        "n_group": 4,
        "topk_group": 2,
    }
    return SimpleNamespace(**(sizes | extra))


def _router(module, name, **extra):
    """A router of transformers with random weights."""
    models = pytest.importorskip("transformers.models")
    router = getattr(__import__(f"{models.__name__}.{module}", fromlist=[name]), name)(_config(**extra))
    with torch.no_grad():
        for seed, tensor in enumerate([*router.parameters(), *router.buffers()]):
            tensor.copy_(_randn(*tensor.shape, seed=seed) * (0.5 if tensor.ndim > 1 else 0.1))
    return router.eval()


def _same(weights, ids, their_weights, their_ids):
    """The same experts with the same weights; some models leave the order open."""
    assert ids.dtype == torch.int64
    assert weights.dtype == torch.float32
    order, their_order = ids.argsort(dim=-1), their_ids.argsort(dim=-1)
    assert torch.equal(ids.gather(1, order), their_ids.gather(1, their_order))
    ours, theirs = weights.gather(1, order), their_weights.float().gather(1, their_order)
    torch.testing.assert_close(ours, theirs, rtol=2e-6, atol=1e-7)


V3 = {"scoring": "sigmoid", "renormalize": True, "groups": 4, "top_groups": 2, "scale": 2.5}
PLAIN = {"scoring": "softmax", "renormalize": True}
# Module, class, what its config has beside the sizes, our options, where the bias for the choice lies.
CASES = {
    "mixtral": ("mixtral.modeling_mixtral", "MixtralTopKRouter", {}, PLAIN, None),
    "minimax": ("minimax.modeling_minimax", "MiniMaxTopKRouter", {}, PLAIN, None),
    "qwen3": ("qwen3_moe.modeling_qwen3_moe", "Qwen3MoeTopKRouter", {}, PLAIN, None),
    "olmoe": (
        "olmoe.modeling_olmoe",
        "OlmoeTopKRouter",
        {"norm_topk_prob": False},
        {"scoring": "softmax"},
        None,
    ),
    "gpt_oss": ("gpt_oss.modeling_gpt_oss", "GptOssTopKRouter", {}, {"scoring": "softmax_after"}, None),
    "granite": (
        "granitemoe.modeling_granitemoe",
        "GraniteMoeTopKRouter",
        {},
        {"scoring": "softmax_after"},
        None,
    ),
    "deepseek_v3": (
        "deepseek_v3.modeling_deepseek_v3",
        "DeepseekV3TopkRouter",
        {},
        V3,
        "e_score_correction_bias",
    ),
    "glm4": ("glm4_moe.modeling_glm4_moe", "Glm4MoeTopkRouter", {}, V3, "e_score_correction_bias"),
    "dots1": ("dots1.modeling_dots1", "Dots1TopkRouter", {}, V3, "e_score_correction_bias"),
    "nemotron_h": (
        "nemotron_h.modeling_nemotron_h",
        "NemotronHTopkRouter",
        {"norm_topk_prob": False},
        V3 | {"renormalize": False},
        "e_score_correction_bias",
    ),
    "longcat": (
        "longcat_flash.modeling_longcat_flash",
        "LongcatFlashTopkRouter",
        {"zero_expert_num": 4},
        {"scoring": "softmax", "scale": 2.5},
        "e_score_correction_bias",
    ),
    "phimoe": (
        "phimoe.modeling_phimoe",
        "PhimoeTopKRouter",
        {"router_jitter_noise": 0.2, "input_jitter_noise": 0.0, "num_experts_per_tok": 2},
        {"scoring": "sparsemixer", "top_k": 2, "jitter_eps": 0.2},
        None,
    ),
    "deepseek_v2": (
        "deepseek_v2.modeling_deepseek_v2",
        "DeepseekV2TopkRouter",
        {"topk_method": "group_limited_greedy"},
        {"scoring": "softmax", "scale": 2.5, "groups": 4, "top_groups": 2, "group_score": "max"},
        None,
    ),
    "deepseek_v4": (
        "deepseek_v4.modeling_deepseek_v4",
        "DeepseekV4TopKRouter",
        {"scoring_func": "sqrtsoftplus"},
        {"scoring": "sqrtsoftplus", "renormalize": True, "scale": 2.5},
        "e_score_correction_bias",
    ),
    "cohere2": (
        "cohere2_moe.modeling_cohere2_moe",
        "Cohere2MoeTopKRouter",
        {"expert_selection_fn": "sigmoid"},
        {"scoring": "sigmoid_after", "renormalize": True},
        None,
    ),
}


@pytest.mark.parametrize("name", list(CASES))
def test_routes_as_transformers_does(name):
    module, cls, extra, options, bias = CASES[name]
    router = _router(module, cls, **extra)
    with torch.no_grad():
        logits, their_weights, their_ids = router(_randn(TOKENS, HIDDEN, seed=9))
    weights, ids = ops.route_experts(
        logits, **({"top_k": TOP_K} | options), bias=None if bias is None else getattr(router, bias)
    )
    _same(weights, ids, their_weights, their_ids)


def test_routes_as_jamba_does():
    router = _router("jamba.modeling_jamba", "JambaTopKRouter")
    with torch.no_grad():
        logits, *theirs = router(_randn(TOKENS, HIDDEN, seed=9))
    _same(*ops.route_experts(logits, top_k=TOP_K), *theirs)


def test_routes_as_hunyuan_does():
    router = _router("hunyuan_v1_moe.modeling_hunyuan_v1_moe", "HunYuanMoEV1Gate", moe_topk=TOP_K)
    with torch.no_grad():
        logits, *theirs = router(_randn(TOKENS, HIDDEN, seed=9))
    _same(*ops.route_experts(logits, top_k=TOP_K, **PLAIN), *theirs)


def test_routes_as_lfm2_does():
    router = _router("lfm2_moe.modeling_lfm2_moe", "Lfm2MoeTopKRouter", use_expert_bias=True)
    bias = _randn(EXPERTS, seed=5) * 0.1
    with torch.no_grad():
        logits, *theirs = router(_randn(TOKENS, HIDDEN, seed=9), bias)
    ours = ops.route_experts(
        logits,
        top_k=TOP_K,
        scoring="sigmoid",
        renormalize=True,
        bias=bias,
        scale=2.5,
        renormalize_eps=1e-6,
    )
    _same(*ours, *theirs)


def test_routes_as_minimax_m2_does():
    router = _router("minimax_m2.modeling_minimax_m2", "MiniMaxM2TopKRouter")
    bias = _randn(EXPERTS, seed=5) * 0.1
    with torch.no_grad():
        logits, *theirs = router(_randn(TOKENS, HIDDEN, seed=9), bias)
    _same(*ops.route_experts(logits, top_k=TOP_K, scoring="sigmoid", renormalize=True, bias=bias), *theirs)


def test_routes_as_ernie_does():
    router = _router(
        "ernie4_5_moe.modeling_ernie4_5_moe", "Ernie4_5_MoeTopKRouter", moe_norm_min=1e-12, moe_num_experts=1
    )
    with torch.no_grad():
        logits, *theirs = router(_randn(TOKENS, HIDDEN, seed=9))
    bias = router.moe_statics.e_score_correction_bias.detach().squeeze()
    _same(*ops.route_experts(logits, top_k=TOP_K, bias=bias, **PLAIN), *theirs)


def test_routes_as_llama4_does():
    router = _router("llama4.modeling_llama4", "Llama4Router")
    with torch.no_grad():
        scores, logits = router(_randn(TOKENS, HIDDEN, seed=9))
    weights, ids = ops.route_experts(logits, top_k=TOP_K, scoring="sigmoid_after")
    assert torch.equal(torch.zeros_like(scores).scatter_(1, ids, weights), scores)


def test_ties_go_where_torch_sends_them():
    logits = torch.randint(0, 3, (200, 64), generator=torch.Generator().manual_seed(0)).bfloat16()
    _, ids = ops.route_experts(logits, top_k=6)
    assert torch.equal(ids, torch.topk(logits.float().softmax(dim=-1), 6, dim=-1).indices)


def test_the_bias_moves_the_choice_and_not_the_weights():
    logits = torch.tensor([[2.0, 1.0, 0.0, -1.0]])
    bias = torch.tensor([0.0, 0.0, 0.0, 5.0])
    weights, ids = ops.route_experts(logits, top_k=2, scoring="sigmoid", bias=bias)
    assert ids.tolist() == [[3, 0]]
    torch.testing.assert_close(weights, logits.sigmoid()[:, [3, 0]])


def test_experts_outside_the_best_groups_are_not_chosen():
    logits = torch.tensor([[9.0, -9.0, 1.0, 1.0, 8.0, -9.0]])  # groups of two
    _, by_best = ops.route_experts(logits, top_k=2, groups=3, top_groups=1, group_score="max")
    _, by_two = ops.route_experts(logits, scoring="sigmoid", top_k=2, groups=3, top_groups=1)
    assert sorted(by_best[0].tolist()) == [0, 1]
    assert sorted(by_two[0].tolist()) == [2, 3]


def test_no_tokens():
    weights, ids = ops.route_experts(torch.zeros(0, 8), top_k=2, groups=2, top_groups=1)
    assert weights.shape == ids.shape == (0, 2)


@pytest.mark.parametrize(
    ("field", "given"),
    [
        ("top_k", {"top_k": 0}),
        ("top_k", {"top_k": 9}),
        ("top_k", {"top_k": 5, "groups": 4, "top_groups": 2}),
        ("scoring", {"scoring": "relu"}),
        ("scoring", {"scoring": "sparsemixer", "renormalize": True}),
        ("bias", {"bias": torch.zeros(7)}),
        ("groups", {"groups": 3, "top_groups": 1}),
        ("groups", {"scoring": "softmax_after", "groups": 2, "top_groups": 1}),
        ("top_groups", {"groups": 2}),
        ("top_groups", {"groups": 2, "top_groups": 3}),
        ("top_groups", {"top_groups": 1}),
        ("group_score", {"groups": 8, "top_groups": 4}),
        ("group_score", {"groups": 2, "top_groups": 1, "group_score": "sum"}),
        ("logits_TN", {"logits_TN": torch.zeros(8)}),
        ("logits_TN", {"logits_TN": torch.zeros(1, 8, dtype=torch.int64)}),
    ],
)
def test_bad_options_are_refused(field, given):
    arguments = {"logits_TN": torch.zeros(1, 8), "top_k": 2} | given
    with pytest.raises(InvalidArgument) as caught:
        ops.route_experts(arguments.pop("logits_TN"), **arguments)
    assert caught.value.field == field
