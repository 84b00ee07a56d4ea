"""The Triton kernels of norms, activations and experts in Triton's interpreter, against the references.

As in test_kernels_interpreted.py, the tests run in a process of their own, which `test_in_the_interpreter`
starts.
"""

from __future__ import annotations

import os
from typing import get_args

import pytest
import torch
from llm_kernels import ops

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
inside = pytest.mark.skipif(not INTERPRETED, reason="runs in the process test_in_the_interpreter starts")
BOUND = {torch.float32: 2e-6, torch.float16: 2e-3}
DTYPES = list(BOUND)
KINDS = [kind for kind in get_args(ops.ActivationKind) if kind != "xielu"]


@pytest.mark.skipif(INTERPRETED, reason="is the inner process")
def test_in_the_interpreter(rerun_in_the_interpreter):
    assert rerun_in_the_interpreter() >= 60


@pytest.fixture(autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def _randn(*shape, dtype=torch.float32, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def _both(op, call):
    """What `call` returns under the reference and under the kernel."""
    with ops.use_backend(op, "torch"):
        expected = call()
    with ops.use_backend(op, "triton_interpreter"):
        return call(), expected


@inside
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    ("shape", "weight_shape", "bias_shape"),
    [
        ((3, 576), (576,), (576,)),
        ((3, 20), None, (20,)),
        ((3, 20), None, None),
        ((5, 3, 24), (24,), None),
        ((5, 3, 24), (3, 24), (3, 24)),
        ((0, 8), (8,), (8,)),
    ],
    ids=str,
)
def test_norms(relative_error, dtype, shape, weight_shape, bias_shape):
    x, residual = _randn(*shape, dtype=dtype) + 2, _randn(*shape, dtype=dtype, seed=1)
    weight = None if weight_shape is None else _randn(*weight_shape, seed=2)
    bias = None if bias_shape is None else _randn(*bias_shape, seed=3)

    def plain(op, *factors):
        out = torch.full_like(x, float("nan"))
        getattr(ops, op)(out, x, *factors, 1e-5)
        return out

    def fused(op, *factors):
        a, r = x.clone(), residual.clone()
        getattr(ops, op)(a, r, *factors, 1e-5)
        return torch.cat([a, r])

    for got, expected in (
        _both("layer_norm", lambda: plain("layer_norm", weight, bias)),
        _both("rms_norm", lambda: plain("rms_norm", weight)),
        _both("fused_add_layer_norm", lambda: fused("fused_add_layer_norm", weight, bias)),
        _both("fused_add_rms_norm", lambda: fused("fused_add_rms_norm", weight)),
    ):
        assert relative_error(got, expected) < BOUND[dtype]


@inside
@pytest.mark.parametrize("kind", KINDS)
def test_activations(relative_error, kind):
    x = torch.cat([_randn(3, 700) * 4, _randn(3, 700) * 1e-3, _randn(3, 100) * 40], dim=1)

    def plain():
        out = torch.empty_like(x)
        ops.activation(out, x, kind)
        return out

    def gated():
        out = torch.empty(3, 750)
        ops.gated_activation(out, x, kind, limit=3.0)
        return out

    for got, expected in (_both("activation", plain), _both("gated_activation", gated)):
        assert relative_error(got, expected) < 2e-6
        torch.testing.assert_close(got, expected, rtol=2e-5, atol=2e-6)


@inside
def test_xielu_and_the_gate_of_gpt_oss(relative_error):
    x = _randn(3, 200) * 3
    parameters = torch.tensor([0.7, 1.3, 0.5])

    def xielu():
        out = torch.empty_like(x)
        ops.activation(out, x, "xielu", parameters=parameters)
        return out

    def gate():
        out = torch.empty(3, 100)
        ops.gated_activation(out, x, limit=2.0, alpha=1.702)
        return out

    for got, expected in (_both("activation", xielu), _both("gated_activation", gate)):
        assert relative_error(got, expected) < 2e-6


@inside
@pytest.mark.parametrize("num_pairs", [1, 7, 100, 1100, 4500])
@pytest.mark.parametrize(("num_experts", "block_m"), [(1, 16), (6, 16), (33, 64)])
def test_sort_by_expert(num_pairs, num_experts, block_m):
    from llm_kernels.triton.experts_sort import sort_by_expert

    generator = torch.Generator().manual_seed(num_pairs)
    ids = torch.randint(-1, num_experts + 2, (num_pairs,), generator=generator)
    blocks = sort_by_expert(ids, num_experts, block_m)
    expected_pairs, expected_experts = [], []
    for expert in range(num_experts):
        own = (ids == expert).nonzero().flatten().tolist()
        own += [num_pairs] * (-len(own) % block_m)
        expected_pairs += own
        expected_experts += [expert] * (len(own) // block_m)
    assert blocks.pairs[: len(expected_pairs)].tolist() == expected_pairs
    assert blocks.experts[: len(expected_experts)].tolist() == expected_experts
    assert (blocks.experts[len(expected_experts) :] == -1).all()


@inside
def test_the_blocks_suffice_however_the_pairs_fall():
    from llm_kernels.triton.experts_sort import sort_by_expert

    for counts in ([1] * 8, [17] * 8, [33, 1, 1, 1], [0, 0, 48], [31, 0, 1]):
        ids = torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts))
        blocks = sort_by_expert(ids, len(counts), 16)
        assert int((blocks.experts >= 0).sum()) == sum(-(-count // 16) for count in counts)


def _problem(num_tokens, dtype, *, experts=5, size=72, inner=40, top_k=2, rows=2, routed=None):
    weights, ids = ops.route_experts(
        _randn(num_tokens, routed or experts, seed=1), top_k=top_k, renormalize=True
    )
    up = _randn(experts, rows * inner, size, dtype=dtype, seed=2) * size**-0.5
    down = _randn(experts, size, inner, dtype=dtype, seed=3) * inner**-0.5
    return _randn(num_tokens, size, dtype=dtype), weights, ids, up, down


def _moe(problem, **options):
    def call():
        out = torch.full_like(problem[0], float("nan"))
        ops.moe(out, *problem, **options)
        return out

    return _both("moe", call)


@inside
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("num_tokens", [0, 1, 5, 60, 170])
def test_moe(relative_error, dtype, num_tokens):
    got, expected = _moe(_problem(num_tokens, dtype))
    assert relative_error(got, expected) < BOUND[dtype]


OPTIONS = [
    ({}, {"limit": 0.5, "alpha": 1.702, "biases": True}),
    ({}, {"weight_input": True, "biases": True}),
    ({"rows": 1}, {"gated": False, "activation": "relu2"}),
    ({"rows": 1}, {"gated": False, "biases": True}),
    ({"routed": 8}, {"zero_experts": 3}),
    ({"experts": 1, "top_k": 1}, {}),
    ({"size": 128, "inner": 256, "experts": 20, "top_k": 3}, {"activation": "gelu_tanh"}),
]


@inside
@pytest.mark.parametrize("num_tokens", [1, 3, 20])
@pytest.mark.parametrize(("sizes", "options"), OPTIONS, ids=str)
def test_moe_options(relative_error, num_tokens, sizes, options):
    problem = _problem(num_tokens, torch.float32, **sizes)
    options = dict(options)
    if options.pop("biases", False):
        options |= {"up_bias": _randn(*problem[3].shape[:2], seed=4), "down_bias": _randn(5, 72, seed=5)}
    got, expected = _moe(problem, **options)
    assert relative_error(got, expected) < 2e-6


@inside
@pytest.mark.parametrize(("size", "inner"), [(4200, 40), (72, 1100)])
def test_rows_of_weights_wider_than_a_program(relative_error, size, inner):
    got, expected = _moe(_problem(2, torch.float32, size=size, inner=inner))
    assert relative_error(got, expected) < 2e-6


@inside
@pytest.mark.parametrize("counts", [(40, 0, 0, 0, 0), (0, 0, 17, 0, 1), (1, 1, 1, 1, 1), (0, 0, 0, 0, 0)])
def test_moe_when_the_experts_are_uneven(relative_error, counts):
    """One expert has all tokens, or some have none; the pairs left over go to no expert."""
    ids = torch.full((40, 1), -1)
    taken = 0
    for expert, count in enumerate(counts):
        ids[taken : taken + count] = expert
        taken += count
    x, weights, _, up, down = _problem(40, torch.float32, top_k=1)
    got, expected = _moe((x, weights, ids, up, down))
    assert relative_error(got, expected) < 2e-6
    assert not got[taken:].any()


@inside
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("size", "inner"), [(72, 40), (128, 64)])
def test_every_tile_computes_the_same(relative_error, dtype, size, inner):
    from llm_kernels.expert_mlp import ExpertMlp
    from llm_kernels.triton.experts import moe_by_expert
    from llm_kernels.triton.experts_tiles import ExpertTiles, Tile

    x, weights, ids, up, down = _problem(30, dtype, size=size, inner=inner)
    plain = {"up_bias": None, "down_bias": None, "limit": None, "alpha": None, "weight_input": False}
    mlp = ExpertMlp(up=up, down=down, activation="silu", gated=True, zero_experts=0, **plain)
    expected = torch.empty_like(x)
    with ops.use_backend("moe", "torch"):
        ops.moe(expected, x, weights, ids, up, down)
    for block_m, block_n, group_m, descriptor in (
        (16, 32, 8, False),
        (16, 64, 1, True),
        (64, 16, 4, True),
        (128, 16, 2, False),
    ):
        tile = Tile(
            block_n=block_n,
            block_k=32,
            num_warps=4,
            num_stages=2,
            descriptor=descriptor,
            group_m=group_m,
        )
        out = torch.full_like(x, float("nan"))
        moe_by_expert(out, x, weights, ids, mlp, ExpertTiles(block_m=block_m, up=tile, down=tile))
        assert relative_error(out, expected) < BOUND[dtype]


@inside
def test_moe_leaves_out_other_ranks_and_writes_over_its_input(relative_error):
    x, weights, ids, up, down = _problem(20, torch.float32)
    ids[::2, 0] = -1
    ids[3] = -1
    got, expected = _moe((x, weights, ids, up, down))
    assert relative_error(got, expected) < 2e-6
    assert not got[3].any()
    with ops.use_backend("moe", "triton_interpreter"):
        ops.moe(x, x, weights, ids, up, down)
    assert torch.equal(x, got)


def _quantized(weight_NOI, *, blocked):
    """e4m3 values, float32 scales an output or a block of 128 x 128, and what they stand for."""
    experts, outputs, inputs = weight_NOI.shape
    shape = (experts, -(-outputs // 128), -(-inputs // 128)) if blocked else (experts, outputs)
    scale = torch.rand(shape, generator=torch.Generator().manual_seed(9)) * 0.02 + 0.001
    values = (weight_NOI * 100).clamp(-448, 448).to(torch.float8_e4m3fn)
    if blocked:
        wide = scale.repeat_interleave(128, 1)[:, :outputs].repeat_interleave(128, 2)[:, :, :inputs]
    else:
        wide = scale[:, :, None]
    return values, scale, values.float() * wide


@inside
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    ("num_tokens", "blocked", "sizes"),
    [
        (1, False, {"size": 72, "inner": 40}),
        (20, False, {"size": 72, "inner": 40}),
        (1, True, {"size": 320, "inner": 128}),
        (20, True, {"size": 320, "inner": 128}),
        (1, True, {"size": 136, "inner": 1152, "experts": 2}),
        (1, True, {"size": 4160, "inner": 128, "experts": 2}),
        (1, True, {"size": 200, "inner": 72, "rows": 1}),
        (20, True, {"size": 200, "inner": 72, "rows": 1}),
    ],
    ids=str,
)
def test_moe_of_e4m3_weights(relative_error, dtype, num_tokens, blocked, sizes):
    x, weights, ids, up, down = _problem(num_tokens, torch.float32, **sizes)
    gated = sizes.get("rows", 2) == 2
    up, up_scale, wide_up = _quantized(up, blocked=blocked)
    down, down_scale, wide_down = _quantized(down, blocked=blocked)
    problem = (x.to(dtype), weights, ids, up, down)
    got, expected = _moe(problem, gated=gated, up_scale=up_scale, down_scale=down_scale)
    assert relative_error(got, expected) < BOUND[dtype]
    with ops.use_backend("moe", "torch"):
        exact = torch.empty_like(x)
        ops.moe(exact, x, weights, ids, wide_up, wide_down, gated=gated)
    assert relative_error(expected, exact) < BOUND[dtype]


def _wide(values, scale):
    """Float32 weights, and whether they have scales a block."""
    _, outputs, inputs = values.shape
    if scale.ndim == 2:
        return values.float() * scale[:, :, None], False
    wide = scale.repeat_interleave(128, 1)[:, :outputs].repeat_interleave(128, 2)[:, :, :inputs]
    return values.float() * wide, True


def _rounded(x_TI, blocked):
    groups = -(-x_TI.shape[1] // 128) if blocked else 1
    values, scales = torch.empty(x_TI.shape, dtype=torch.float8_e4m3fn), torch.empty(len(x_TI), groups)
    with ops.use_backend("quantize_fp8", "torch"):
        ops.quantize_fp8(values, scales, x_TI)
    return values.float() * scales.repeat_interleave(-(-x_TI.shape[1] // groups), 1)[:, : x_TI.shape[1]]


def _mixture_of_rounded_rows(x, weights, ids, up, up_blocked, down, down_blocked):
    """Token by token, in float32, with the rounding of both products' rows."""
    out = torch.zeros(x.shape)
    for token, choices in enumerate(ids.tolist()):
        for choice, expert in enumerate(choices):
            gate, value = (_rounded(x[token][None], up_blocked) @ up[expert].T).chunk(2, dim=1)
            inner = (torch.nn.functional.silu(gate) * value).to(x.dtype)
            out[token] += weights[token, choice] * (_rounded(inner, down_blocked) @ down[expert].T)[0]
    return out


@inside
@pytest.mark.parametrize("blocked", [False, True])
@pytest.mark.parametrize("descriptor", [False, True])
def test_rows_quantized_to_multiply_e4m3_weights(monkeypatch, relative_error, blocked, descriptor):
    """The rows are quantized by the reference: the interpreter of triton 3.7.1 loses carries of roundings."""
    from llm_kernels.expert_mlp import ExpertMlp
    from llm_kernels.reference.quantize_fp8 import quantize_fp8
    from llm_kernels.triton import experts as launches
    from llm_kernels.triton.experts import moe_by_expert
    from llm_kernels.triton.experts_tiles import ExpertTiles, Tile

    x, weights, ids, up, down = _problem(40, torch.float16, size=256, inner=128)
    up, up_scale, _ = _quantized(up, blocked=blocked)
    down, down_scale, _ = _quantized(down, blocked=blocked)
    scales = {"up_scale": up_scale, "down_scale": down_scale}
    plain = {"up_bias": None, "down_bias": None, "limit": None, "alpha": None, "weight_input": False}
    mlp = ExpertMlp(up=up, down=down, activation="silu", gated=True, zero_experts=0, **plain, **scales)
    expected = torch.empty_like(x)
    with ops.use_backend("moe", "torch"):
        ops.moe(expected, x, weights, ids, up, down, **scales)
    tile = Tile(block_n=64, block_k=128, num_warps=4, num_stages=2, descriptor=descriptor)
    out = torch.full_like(x, float("nan"))
    monkeypatch.setattr(launches, "quantize_fp8", quantize_fp8)
    moe_by_expert(out, x, weights, ids, mlp, ExpertTiles(block_m=16, up=tile, down=tile, narrow=True))
    assert 1e-2 < relative_error(out, expected) < 0.08  # what rounding to e4m3 costs
    rounded = _mixture_of_rounded_rows(x, weights, ids, *_wide(up, up_scale), *_wide(down, down_scale))
    assert relative_error(out, rounded) < 1e-2


@inside
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("num_rows", [0, 1, 90])
def test_grouped_linear(relative_error, dtype, num_rows):
    x = _randn(num_rows, 2 * 70, dtype=dtype)[:, :70]
    weight, bias = _randn(4, 33, 70, dtype=dtype, seed=1), _randn(4, 33, seed=2)
    ids = torch.randint(-1, 4, (num_rows,), generator=torch.Generator().manual_seed(0))

    def call():
        out = torch.full((num_rows, 33), float("nan"), dtype=dtype)
        ops.grouped_linear(out, x, weight, ids, bias)
        return out

    got, expected = _both("grouped_linear", call)
    assert relative_error(got, expected) < BOUND[dtype]
