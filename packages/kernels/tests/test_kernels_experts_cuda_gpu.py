"""The CUDA kernels of mixtures of experts and their router on a Hopper GPU, against the reference."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from llm_kernels import ops
from llm_kernels.errors import InvalidArgument
from llm_kernels.expert_mlp import ExpertMlp
from llm_kernels.reference.experts import moe as reference_moe
from llm_kernels.routing_rule import RoutingRule

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0),
        reason="needs a Hopper GPU",
    ),
]

BOUND = 1e-2
# Where rows are quantized they are rounded twice to three bits.
NARROW_BOUND = 0.08
# Experts, chosen, hidden, inner.
SIZES = [(128, 8, 2048, 768), (16, 4, 640, 384), (8, 2, 4096, 1024), (5, 2, 72, 40), (3, 1, 200, 264)]


@pytest.fixture(scope="module")
def cuda_experts():
    from llm_kernels.cuda import experts

    return experts


def _randn(*shape, dtype=torch.bfloat16, seed=0):
    generator = torch.Generator("cuda").manual_seed(seed)
    return torch.randn(shape, generator=generator, device="cuda").to(dtype)


def _problem(num_tokens, sizes, *, seed=0, zero_experts=0, activation="silu"):
    experts, top_k, size, inner = sizes
    logits = _randn(num_tokens, experts + zero_experts, dtype=torch.float32, seed=seed + 1)
    weights, ids = ops.route_experts(logits, top_k=top_k, renormalize=True)
    mlp = ExpertMlp(
        up=_randn(experts, 2 * inner, size, seed=seed + 2).mul_(size**-0.5),
        down=_randn(experts, size, inner, seed=seed + 3).mul_(inner**-0.5),
        up_bias=None,
        down_bias=None,
        activation=activation,
        gated=True,
        limit=None,
        alpha=None,
        weight_input=False,
        zero_experts=zero_experts,
    )
    return _randn(num_tokens, size, seed=seed), weights, ids, mlp


def _quantized(mlp):
    """The mixture with e4m3 weights and a scale an output."""

    def narrowed(weight_NOI, seed):
        scale = torch.rand(weight_NOI.shape[:2], device="cuda") * 0.02 + 0.001
        return (weight_NOI.float() * 100).to(torch.float8_e4m3fn), scale

    (up, up_scale), (down, down_scale) = narrowed(mlp.up, 1), narrowed(mlp.down, 2)
    return dataclasses.replace(mlp, up=up, down=down, up_scale=up_scale, down_scale=down_scale)


def _both(cuda_experts, x, weights, ids, mlp):
    """What the kernels and the reference write."""
    out, expected = torch.full_like(x, float("nan")), torch.empty_like(x)
    cuda_experts.moe_by_expert(out, x, weights, ids, mlp)
    reference_moe(expected, x, weights, ids, mlp)
    return out, expected


def test_it_is_chosen_for_bfloat16():
    assert ops.selected("moe", "cuda", torch.bfloat16) == "cuda"


@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("num_tokens", [1, 33, 700, 6000])
def test_mixtures(relative_error, cuda_experts, sizes, num_tokens):
    problem = _problem(num_tokens, sizes, seed=num_tokens)
    got, expected = _both(cuda_experts, *problem)
    assert relative_error(got, expected) < BOUND


@pytest.mark.parametrize("sizes", [(128, 8, 2048, 768), (16, 4, 640, 384), (3, 2, 208, 272)], ids=str)
@pytest.mark.parametrize("num_tokens", [1, 300, 4100])
def test_mixtures_of_e4m3_weights(relative_error, cuda_experts, sizes, num_tokens):
    x, weights, ids, mlp = _problem(num_tokens, sizes, seed=num_tokens)
    got, expected = _both(cuda_experts, x, weights, ids, _quantized(mlp))
    assert relative_error(got, expected) < NARROW_BOUND


@pytest.mark.parametrize("activation", ["gelu", "gelu_tanh"])
def test_other_activations(relative_error, cuda_experts, activation):
    got, expected = _both(cuda_experts, *_problem(700, (16, 4, 640, 384), activation=activation))
    assert relative_error(got, expected) < BOUND


def test_zero_experts(relative_error, cuda_experts):
    got, expected = _both(cuda_experts, *_problem(900, (12, 4, 512, 256), zero_experts=4))
    assert relative_error(got, expected) < BOUND


@pytest.mark.parametrize("worst", [False, True])
def test_uneven_experts_and_pairs_of_none(relative_error, cuda_experts, worst):
    x, weights, ids, mlp = _problem(2500, (16, 2, 512, 256))
    ids[:, 0] = 3 if worst else -1
    ids[5:, 1] = 7
    got, expected = _both(cuda_experts, x, weights, ids, mlp)
    assert relative_error(got, expected) < BOUND


def test_rows_apart(relative_error, cuda_experts):
    _, weights, ids, mlp = _problem(1300, (16, 4, 640, 384))
    wide = _randn(1300, 3, 640, seed=9)
    got, expected = _both(cuda_experts, wide[:, 1], weights, ids, mlp)
    assert relative_error(got, expected) < BOUND
    assert not cuda_experts.takes(wide.transpose(1, 2)[:, :, 1], mlp)


def test_the_op_in_a_graph_follows_the_ids(relative_error):
    x, _, _, mlp = _problem(1200, (16, 4, 512, 256))
    logits, out = _randn(1200, 16, dtype=torch.float32, seed=1), torch.zeros_like(x)

    def call():
        weights, ids = ops.route_experts(logits, top_k=4, renormalize=True)
        ops.moe(out, x, weights, ids, mlp.up, mlp.down)

    call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    for seed in (3, 4):
        logits.copy_(_randn(1200, 16, dtype=torch.float32, seed=seed) * 3)
        x.copy_(_randn(1200, 512, seed=seed))
        graph.replay()
        got = out.clone()
        with ops.use_backend("moe", "torch"):
            call()
        assert relative_error(got, out) < BOUND


def test_same_bits_every_time(cuda_experts):
    given = _problem(3000, (32, 4, 1024, 512))
    first = _both(cuda_experts, *given)[0]
    for _ in range(5):
        assert torch.equal(_both(cuda_experts, *given)[0], first)


def test_what_is_refused(cuda_experts):
    x, _, ids, mlp = _problem(300, (4, 2, 64, 32))
    blocks = cuda_experts.sort_by_expert(ids.view(-1), 4, cuda_experts.BLOCK_ROWS)
    inner = torch.empty(blocks.pairs.numel(), 32, dtype=torch.bfloat16, device="cuda")
    with pytest.raises(InvalidArgument, match="weight_NOI"):
        cuda_experts.multiply(inner, x, mlp.up[:, :, :32], None, blocks, 600, 2, gate="silu")
    with pytest.raises(InvalidArgument, match="out"):
        cuda_experts.multiply(inner[:-1], x, mlp.up, None, blocks, 600, 2, gate="silu")
    with pytest.raises(InvalidArgument, match="num_pairs"):
        cuda_experts.multiply(inner, x, mlp.up, None, blocks, 599, 2, gate="silu")


def _whole(*shape, seed, most=3):
    """Small whole numbers, whose products add up exactly."""
    generator = torch.Generator("cuda").manual_seed(seed)
    return torch.randint(-most, most + 1, shape, generator=generator, device="cuda").bfloat16()


def _rule(**options):
    usual = {
        "top_k": 8,
        "scoring": "softmax",
        "renormalize": False,
        "groups": None,
        "top_groups": None,
        "group_score": "top2",
        "scale": 1.0,
        "renormalize_eps": 1e-20,
        "jitter_eps": 0.01,
    }
    return RoutingRule(**(usual | options))


def _assert_routed(x, router, router_bias, bias, rule):
    """The kernel chooses as the product and the choice one by one do."""
    from llm_kernels.cuda import routing
    from llm_kernels.ops.routing import composed

    assert routing.takes(x, router, router_bias, bias, rule)
    expected_weights, expected_ids = composed(x, router, router_bias, bias, rule)
    weights, ids = routing.routed(x, router, router_bias, bias, rule)
    assert torch.equal(ids, expected_ids)
    torch.testing.assert_close(weights, expected_weights, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("options", [{}, {"renormalize": True}, {"scoring": "softmax_after"}], ids=str)
@pytest.mark.parametrize(("experts", "size"), [(128, 2048), (64, 96), (256, 7168), (512, 1056), (128, 32)])
@pytest.mark.parametrize("num_tokens", [1, 15, 64, 100])
def test_the_router_chooses_as_product_and_choice_do(experts, size, num_tokens, options):
    x, router = _whole(num_tokens, size, seed=1), _whole(experts, size, seed=2) / 256
    _assert_routed(x, router, None, None, _rule(**options))


def test_the_router_adds_its_biases():
    x, router = _whole(70, 512, seed=1), _whole(128, 512, seed=2) / 64
    router_bias, bias = _whole(128, seed=3) / 4, _randn(128, dtype=torch.float32, seed=4)
    _assert_routed(
        x, router, router_bias, bias, _rule(top_k=6, scoring="sigmoid", renormalize=True, scale=2.5)
    )


def test_the_router_among_equals_takes_the_lowest():
    assert ops.selected("route_by_linear", "cuda", torch.bfloat16, 64) == "cuda"
    weights, ids = ops.route_by_linear(_whole(9, 64, seed=1) * 0, _whole(128, 64, seed=2), top_k=5)
    assert ids.tolist() == [[0, 1, 2, 3, 4]] * 9
    torch.testing.assert_close(weights, torch.full_like(weights, 1 / 128))


@pytest.mark.parametrize("options", [{}, {"renormalize": True}, {"scoring": "sigmoid"}], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("num_tokens", "experts"), [(1, 128), (3, 64), (1000, 256), (77, 512)])
def test_the_choice_is_that_of_triton(num_tokens, experts, dtype, options):
    from llm_kernels.cuda import expert_choice
    from llm_kernels.triton.routing import route_experts

    logits, bias = _randn(num_tokens, experts, dtype=dtype), _randn(experts, dtype=torch.float32, seed=1)
    rule = _rule(**options, scale=2.5)
    for given in (None, bias):
        expected_weights, expected_ids = route_experts(logits, given, rule)
        weights, ids = expert_choice.route_experts(logits, given, rule)
        assert torch.equal(ids, expected_ids)
        torch.testing.assert_close(weights, expected_weights, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize(("num_pairs", "experts"), [(4097, 128), (65536, 128), (5000, 512), (9000, 3)])
@pytest.mark.parametrize("spread", [1.0, 6.0])
def test_the_sort_is_that_of_triton(num_pairs, experts, spread):
    from llm_kernels.cuda import expert_sort

    ids = (_randn(num_pairs, dtype=torch.float32).abs() * experts / spread).long() - 1  # some of none
    got = expert_sort.sort_by_expert(ids, experts, 128)
    expected = expert_sort.triton_sort(ids, experts, 128)
    assert torch.equal(got.experts, expected.experts)
    used = int((got.experts >= 0).sum()) * 128
    assert torch.equal(got.pairs[:used], expected.pairs[:used])
