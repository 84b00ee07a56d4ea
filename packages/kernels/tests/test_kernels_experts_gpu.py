"""Norms, activations, routing and experts on a CUDA device, compiled, against the references."""

from __future__ import annotations

from typing import get_args

import pytest
import torch
from llm_kernels import ops

pytest.importorskip("triton")
from llm_kernels.triton.experts_tiles import expert_tiles

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

BOUND = {torch.float32: 5e-5, torch.bfloat16: 1e-2, torch.float16: 2e-3}
DTYPES = list(BOUND)
KINDS = [kind for kind in get_args(ops.ActivationKind) if kind != "xielu"]
# Experts, chosen, hidden, inner: Mixtral, Qwen3-30B-A3B, DeepSeek V3's experts (fewer), odd sizes.
SIZES = [(8, 2, 4096, 1024), (128, 8, 2048, 768), (64, 8, 7168, 256), (5, 2, 72, 40)]


def _randn(*shape, dtype=torch.float32, seed=0):
    return torch.randn(shape, generator=torch.Generator("cuda").manual_seed(seed), device="cuda").to(dtype)


def _both(op, call):
    with ops.use_backend(op, "torch"):
        expected = call()
    return call(), expected


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_triton_is_chosen(dtype):
    for op in ("layer_norm", "fused_add_layer_norm", "activation", "grouped_linear", "moe", "route_experts"):
        assert ops.selected(op, "cuda", dtype) == "triton"


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("factors", ["none", "float32", "same", "head"])
@pytest.mark.parametrize("shape", [(1, 576), (300, 4096), (70, 8, 128), (3, 16384), (5, 3, 80)], ids=str)
def test_norms(relative_error, dtype, factors, shape):
    x, residual = _randn(*shape, dtype=dtype) + 2, _randn(*shape, dtype=dtype, seed=1)
    weight, bias = None, None
    if factors != "none":
        wanted = shape[1:] if factors == "head" else shape[-1:]
        weight, bias = (_randn(*wanted, seed=seed) for seed in (2, 3))
        if factors == "same":
            weight, bias = weight.to(dtype), bias.to(dtype)

    def plain(op, *given):
        out = torch.full_like(x, float("nan"))
        getattr(ops, op)(out, x, *given, 1e-5)
        return (out,)

    def fused(op, *given):
        a, r = x.clone(), residual.clone()
        getattr(ops, op)(a, r, *given, 1e-5)
        return a, r

    for results in (
        _both("layer_norm", lambda: plain("layer_norm", weight, bias)),
        _both("rms_norm", lambda: plain("rms_norm", weight)),
        _both("fused_add_layer_norm", lambda: fused("fused_add_layer_norm", weight, bias)),
        _both("fused_add_rms_norm", lambda: fused("fused_add_rms_norm", weight)),
    ):
        for got, expected in zip(*results, strict=True):
            assert relative_error(got, expected) < BOUND[dtype]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_activations(relative_error, dtype, kind):
    x = torch.cat([_randn(130, 2000) * 4, _randn(130, 1072) * 1e-3], dim=1).to(dtype)

    def plain():
        out = torch.empty_like(x)
        ops.activation(out, x, kind)
        return out

    def gated(limit):
        out = torch.empty_like(x[:, :1536]).contiguous()
        ops.gated_activation(out, x, kind, limit=limit)
        return out

    for got, expected in (
        _both("activation", plain),
        _both("gated_activation", lambda: gated(None)),
        _both("gated_activation", lambda: gated(3.0)),
    ):
        assert relative_error(got, expected) < BOUND[dtype]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_xielu_and_the_gate_of_gpt_oss(relative_error, dtype):
    x = _randn(30, 400, dtype=dtype) * 3
    parameters = torch.tensor([0.7, 1.3, 0.5], device="cuda")

    def xielu():
        out = torch.empty_like(x)
        ops.activation(out, x, "xielu", parameters=parameters)
        return out

    def gate():
        out = torch.empty(30, 200, dtype=dtype, device="cuda")
        ops.gated_activation(out, x, limit=2.0, alpha=1.702)
        return out

    for got, expected in (_both("activation", xielu), _both("gated_activation", gate)):
        assert relative_error(got, expected) < BOUND[dtype]


def _problem(num_tokens, dtype, sizes, *, rows=2, routed=None):
    experts, top_k, size, inner = sizes
    logits = _randn(num_tokens, routed or experts, seed=1)
    weights, ids = ops.route_experts(logits, top_k=top_k, renormalize=True)
    up = _randn(experts, rows * inner, size, dtype=dtype, seed=2) * size**-0.5
    down = _randn(experts, size, inner, dtype=dtype, seed=3) * inner**-0.5
    return _randn(num_tokens, size, dtype=dtype), weights, ids, up, down


def _moe(problem, **options):
    def call():
        out = torch.full_like(problem[0], float("nan"))
        ops.moe(out, *problem, **options)
        return out

    return _both("moe", call)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("num_tokens", [0, 1, 3, 33, 256, 2500])
def test_moe(relative_error, dtype, sizes, num_tokens):
    got, expected = _moe(_problem(num_tokens, dtype, sizes))
    assert relative_error(got, expected) < BOUND[dtype]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("num_tokens", [2, 700])
@pytest.mark.parametrize(
    ("shapes", "options"),
    [
        ({}, {"limit": 0.5, "alpha": 1.702, "biases": True}),
        ({}, {"weight_input": True, "biases": True}),
        ({"rows": 1}, {"gated": False, "activation": "relu2"}),
        ({"routed": 48}, {"zero_experts": 16}),
    ],
    ids=str,
)
def test_moe_options(relative_error, dtype, num_tokens, shapes, options):
    problem = _problem(num_tokens, dtype, (32, 4, 2880, 360), **shapes)
    options = dict(options)
    if options.pop("biases", False):
        options |= {
            "up_bias": _randn(32, 720, dtype=dtype, seed=4),
            "down_bias": _randn(32, 2880, dtype=dtype, seed=5),
        }
    got, expected = _moe(problem, **options)
    assert relative_error(got, expected) < BOUND[dtype]


def _quantized(weight_NOI, *, blocked):
    """e4m3 values, and float32 scales an output or a block of 128 x 128."""
    experts, outputs, inputs = weight_NOI.shape
    shape = (experts, -(-outputs // 128), -(-inputs // 128)) if blocked else (experts, outputs)
    scale = torch.rand(shape, device="cuda") * 0.02 + 0.001
    return (weight_NOI.float() * 100).to(torch.float8_e4m3fn), scale


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("blocked", [False, True])
@pytest.mark.parametrize("sizes", [(128, 8, 2048, 768), (16, 4, 640, 384)], ids=str)
@pytest.mark.parametrize("num_tokens", [1, 5, 64, 300, 3000])
def test_moe_of_e4m3_weights(relative_error, dtype, blocked, sizes, num_tokens):
    x, weights, ids, up, down = _problem(num_tokens, dtype, sizes)
    up, up_scale = _quantized(up, blocked=blocked)
    down, down_scale = _quantized(down, blocked=blocked)
    got, expected = _moe((x, weights, ids, up, down), up_scale=up_scale, down_scale=down_scale)
    # Where rows are quantized too, they are rounded twice to three bits.
    is_narrow = expert_tiles(dtype, ids.numel(), sizes[0], is_quantized=True).narrow
    assert relative_error(got, expected) < (0.08 if is_narrow else BOUND[dtype])


@pytest.mark.parametrize("worst", [False, True])
def test_moe_when_the_experts_are_uneven(relative_error, worst):
    x, weights, ids, up, down = _problem(600, torch.bfloat16, (16, 2, 512, 256))
    ids[:, 0] = 3 if worst else -1
    ids[5:, 1] = 7
    got, expected = _moe((x, weights, ids, up, down))
    assert relative_error(got, expected) < 1e-2


@pytest.mark.parametrize("num_tokens", [1, 8, 64])
def test_routing_and_moe_in_a_graph_follow_the_ids(relative_error, num_tokens):
    x, _, _, up, down = _problem(num_tokens, torch.bfloat16, (64, 4, 512, 256))
    logits, bias, out = _randn(num_tokens, 64, seed=1), _randn(64, seed=2), torch.zeros_like(x)

    def call():
        weights, ids = ops.route_experts(
            logits, top_k=4, scoring="sigmoid", renormalize=True, bias=bias, groups=8, top_groups=4
        )
        ops.moe(out, x, weights, ids, up, down)

    call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    for seed in (3, 4):
        logits.copy_(_randn(num_tokens, 64, seed=seed))
        x.copy_(_randn(num_tokens, 512, dtype=torch.bfloat16, seed=seed))
        graph.replay()
        got = out.clone()
        with ops.use_backend("moe", "torch"):
            call()
        assert relative_error(got, out) < 1e-2


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("num_rows", [1, 90, 3000])
def test_grouped_linear(relative_error, dtype, num_rows):
    weight, bias = _randn(8, 300, 520, dtype=dtype, seed=1), _randn(8, 300, seed=2)
    x = _randn(num_rows, 520, dtype=dtype)
    ids = torch.randint(-1, 8, (num_rows,), generator=torch.Generator("cuda").manual_seed(0), device="cuda")

    def call():
        out = torch.full((num_rows, 300), float("nan"), dtype=dtype, device="cuda")
        ops.grouped_linear(out, x, weight, ids, bias)
        return out

    got, expected = _both("grouped_linear", call)
    assert relative_error(got, expected) < BOUND[dtype]


@pytest.mark.parametrize("rule", [{}, {"scoring": "sigmoid", "groups": 8, "top_groups": 4}], ids=str)
def test_routing_on_the_device_is_that_of_the_cpu(rule):
    # Far enough apart that the last bit of a score decides nothing.
    logits = _randn(500, 256).argsort(dim=-1) / 32.0 - 4.0
    weights, ids = ops.route_experts(logits, top_k=8, renormalize=True, **rule)
    expected_weights, expected_ids = ops.route_experts(logits.cpu(), top_k=8, renormalize=True, **rule)
    assert torch.equal(ids.cpu(), expected_ids)
    torch.testing.assert_close(weights.cpu(), expected_weights, rtol=1e-5, atol=1e-7)
