"""Grouped linear and expert MLPs on the CPU, against one token and one expert at a time in float64."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from llm_kernels import ops
from llm_kernels.errors import InvalidArgument

BOUND = {torch.float32: 2e-6, torch.bfloat16: 1.2e-2, torch.float16: 2e-3}
N, SIZE, INNER, K = 6, 40, 24, 3


def _randn(*shape, dtype=torch.float32, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def _one_expert(x, up, down, up_bias, down_bias, act):
    inner = up @ x if up_bias is None else up @ x + up_bias
    inner = act(inner)
    return down @ inner if down_bias is None else down @ inner + down_bias


def _gate(inner):
    gate, up = inner.chunk(2)
    return F.silu(gate) * up


def _expected(x, weights, ids, up, down, *, up_bias=None, down_bias=None, act=_gate, weight_input=False):
    """By the definition."""
    x, weights, up, down = (t.double() for t in (x, weights, up, down))
    up_bias, down_bias = (None if b is None else b.double() for b in (up_bias, down_bias))
    out = torch.zeros_like(x)
    for token in range(x.shape[0]):
        for weight, expert in zip(weights[token], ids[token].tolist(), strict=True):
            if expert < 0:
                continue
            if expert >= up.shape[0]:
                out[token] += weight * x[token]
                continue
            given = x[token] * weight if weight_input else x[token]
            y = _one_expert(
                given,
                up[expert],
                down[expert],
                None if up_bias is None else up_bias[expert],
                None if down_bias is None else down_bias[expert],
                act,
            )
            out[token] += y if weight_input else weight * y
    return out


def _problem(num_tokens, dtype=torch.float32, rows=2 * INNER, experts=N):
    logits = _randn(num_tokens, experts, seed=1)
    weights, ids = ops.route_experts(logits, top_k=K, renormalize=True)
    up = _randn(N, rows, SIZE, dtype=dtype, seed=2) * SIZE**-0.5
    down = _randn(N, SIZE, INNER, dtype=dtype, seed=3) * INNER**-0.5
    return _randn(num_tokens, SIZE, dtype=dtype), weights, ids, up, down


@pytest.mark.parametrize("dtype", list(BOUND), ids=str)
@pytest.mark.parametrize("num_tokens", [0, 1, 2, 37])
def test_moe(relative_error, dtype, num_tokens):
    problem = _problem(num_tokens, dtype)
    out = torch.full((num_tokens, SIZE), float("nan"), dtype=dtype)
    ops.moe(out, *problem)
    assert relative_error(out, _expected(*problem)) < BOUND[dtype]
    x = problem[0]
    ops.moe(x, *problem)
    assert torch.equal(x, out)


def test_moe_leaves_out_ids_of_minus_one(relative_error):
    x, weights, ids, up, down = _problem(20)
    ids[::2, 0] = -1
    ids[3] = -1
    out = torch.full_like(x, float("nan"))
    ops.moe(out, x, weights, ids, up, down)
    assert relative_error(out, _expected(x, weights, ids, up, down)) < 2e-6
    assert not out[3].any()


def test_moe_with_biases_and_the_gate_of_gpt_oss(relative_error):
    problem = _problem(20)
    biases = {"up_bias": _randn(N, 2 * INNER, seed=4), "down_bias": _randn(N, SIZE, seed=5)}

    def act(inner):
        gate, up = inner.chunk(2)
        gate, up = gate.clamp(max=1.5), up.clamp(-1.5, 1.5)
        return gate * torch.sigmoid(1.702 * gate) * (up + 1)

    out = torch.empty_like(problem[0])
    ops.moe(out, *problem, **biases, limit=1.5, alpha=1.702)
    assert relative_error(out, _expected(*problem, **biases, act=act)) < 2e-6


def test_moe_without_gate(relative_error):
    problem = _problem(20, rows=INNER)
    out = torch.empty_like(problem[0])
    ops.moe(out, *problem, activation="relu2", gated=False)
    assert relative_error(out, _expected(*problem, act=lambda x: F.relu(x) ** 2)) < 2e-6


@pytest.mark.parametrize("has_bias", [False, True])
def test_moe_with_weighted_input(relative_error, has_bias):
    problem = _problem(20)
    bias = {"up_bias": _randn(N, 2 * INNER, seed=4), "down_bias": _randn(N, SIZE, seed=5)} if has_bias else {}
    out = torch.empty_like(problem[0])
    ops.moe(out, *problem, weight_input=True, **bias)
    assert relative_error(out, _expected(*problem, weight_input=True, **bias)) < 2e-6


def test_moe_with_zero_experts(relative_error):
    problem = _problem(30, experts=N + 4)
    assert (problem[2] >= N).any()
    out = torch.empty_like(problem[0])
    ops.moe(out, *problem, zero_experts=4)
    assert relative_error(out, _expected(*problem)) < 2e-6


@pytest.mark.parametrize("bad", [-2, N])
def test_moe_refuses_a_bad_id_and_writes_nothing(bad):
    x, weights, ids, up, down = _problem(5)
    ids[2, 1] = bad
    out = torch.zeros_like(x)
    with pytest.raises(InvalidArgument) as caught:
        ops.moe(out, x, weights, ids, up, down)
    assert caught.value.field == "ids_TK"
    assert not out.any()


@pytest.mark.parametrize(
    ("field", "change"),
    [
        ("out_TE", {"out": torch.zeros(2, SIZE + 1)}),
        ("x_TE", {"x": torch.zeros(SIZE)}),
        ("weights_TK", {"weights": torch.zeros(2, K + 1)}),
        ("ids_TK", {"ids": torch.zeros(3, K, dtype=torch.int64)}),
        ("ids_TK", {"ids": torch.zeros(2, K, dtype=torch.int32)}),
        ("up", {"up": torch.zeros(N, INNER, SIZE)}),
        ("up", {"up": torch.zeros(N, 2 * INNER, SIZE, dtype=torch.float16)}),
        ("down", {"down": torch.zeros(N, SIZE + 1, INNER)}),
        ("up_bias", {"up_bias": torch.zeros(N, INNER)}),
        ("down_bias", {"down_bias": torch.zeros(N, INNER)}),
        ("kind", {"activation": "nosuch"}),
        ("kind", {"activation": "xielu"}),
        ("gated", {"gated": False, "up": torch.zeros(N, INNER, SIZE), "limit": 1.0}),
        ("alpha", {"activation": "gelu", "alpha": 1.0}),
        ("zero_experts", {"zero_experts": -1}),
        ("weight_input", {"zero_experts": 1, "weight_input": True}),
    ],
)
def test_moe_names_what_does_not_fit(field, change):
    given = {
        "out": torch.zeros(2, SIZE),
        "x": torch.ones(2, SIZE),
        "weights": torch.ones(2, K),
        "ids": torch.zeros(2, K, dtype=torch.int64),
        "up": torch.ones(N, 2 * INNER, SIZE),
        "down": torch.ones(N, SIZE, INNER),
    }
    options = {k: v for k, v in change.items() if k not in given}
    given |= {k: v for k, v in change.items() if k in given}
    with pytest.raises(InvalidArgument) as caught:
        ops.moe(*given.values(), **options)
    assert caught.value.field == field
    assert not given["out"].any()


@pytest.mark.parametrize("dtype", list(BOUND), ids=str)
@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("num_rows", [0, 1, 50])
def test_grouped_linear(relative_error, dtype, has_bias, num_rows):
    x, weight = _randn(num_rows, SIZE, dtype=dtype), _randn(N, INNER, SIZE, dtype=dtype, seed=1)
    bias = _randn(N, INNER, seed=2) if has_bias else None
    ids = torch.randint(-1, N, (num_rows,), generator=torch.Generator().manual_seed(0))
    out = torch.full((num_rows, INNER), float("nan"), dtype=dtype)
    ops.grouped_linear(out, x, weight, ids, bias)
    expected = torch.zeros(num_rows, INNER, dtype=torch.float64)
    for row, expert in enumerate(ids.tolist()):
        if expert >= 0:
            expected[row] = weight[expert].double() @ x[row].double()
            expected[row] += 0 if bias is None else bias[expert].double()
    assert relative_error(out, expected) < BOUND[dtype]


@pytest.mark.parametrize("bad", [-2, N])
def test_grouped_linear_refuses_a_bad_id(bad):
    out = torch.zeros(3, INNER)
    with pytest.raises(InvalidArgument) as caught:
        ops.grouped_linear(out, torch.ones(3, SIZE), torch.ones(N, INNER, SIZE), torch.tensor([0, bad, 1]))
    assert caught.value.field == "expert_ids"
    assert not out.any()


@pytest.mark.parametrize(
    ("field", "change"),
    [
        ("out_PO", {"out": torch.zeros(3, INNER + 1)}),
        ("x_PI", {"x": torch.ones(SIZE)}),
        ("weight_NOI", {"weight": torch.ones(N, INNER, SIZE + 1)}),
        ("weight_NOI", {"weight": torch.ones(N, INNER, SIZE, dtype=torch.bfloat16)}),
        ("expert_ids", {"ids": torch.zeros(2, dtype=torch.int64)}),
        ("expert_ids", {"ids": torch.zeros(3, dtype=torch.int32)}),
        ("bias_NO", {"bias": torch.zeros(N, SIZE)}),
    ],
)
def test_grouped_linear_names_what_does_not_fit(field, change):
    given = {
        "out": torch.zeros(3, INNER),
        "x": torch.ones(3, SIZE),
        "weight": torch.ones(N, INNER, SIZE),
        "ids": torch.zeros(3, dtype=torch.int64),
        "bias": torch.zeros(N, INNER),
    } | change
    with pytest.raises(InvalidArgument) as caught:
        ops.grouped_linear(*given.values())
    assert caught.value.field == field
