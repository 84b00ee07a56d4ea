"""The norms on the CPU beyond the plain RMS norm: layer norms, weights of other kinds, both back ends."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from llm_kernels import ops
from llm_kernels.errors import InvalidArgument

BOUND = {torch.float32: 1e-6, torch.bfloat16: 4e-3, torch.float16: 6e-4}
DTYPES = [torch.float32, torch.bfloat16, torch.float16]


def _randn(*shape, dtype=torch.float32, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def _backends(op, dtype):
    return ["torch"] if dtype == torch.float16 else [n for n in ops.available_backends(op) if n != "triton"]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("weight_dtype", [None, torch.float32, "same"], ids=str)
@pytest.mark.parametrize("shape", [(5, 576), (4, 3, 64)], ids=str)
def test_rms_norm_takes_any_weight(relative_error, dtype, weight_dtype, shape):
    x = _randn(*shape, dtype=dtype)
    weight = None
    if weight_dtype is not None:
        weight = _randn(shape[-1], seed=1).to(dtype if weight_dtype == "same" else weight_dtype)
    expected = F.rms_norm(x.float(), shape[-1:], None if weight is None else weight.float(), 1e-5)
    for name in _backends("rms_norm", dtype):
        out = torch.full_like(x, float("nan"))
        with ops.use_backend("rms_norm", name):
            ops.rms_norm(out, x, weight, 1e-5)
        assert relative_error(out, expected) < BOUND[dtype]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("fused", [False, True])
def test_rms_norm_with_a_weight_a_head(relative_error, dtype, fused):
    x, residual, weight = _randn(5, 3, 32, dtype=dtype), _randn(5, 3, 32, dtype=dtype, seed=1), _randn(3, 32)
    total = residual + x if fused else x
    expected = F.rms_norm(total.float(), (32,), None, 1e-5) * weight
    op = "fused_add_rms_norm" if fused else "rms_norm"
    for name in _backends(op, dtype):
        out, r = x.clone(), residual.clone()
        with ops.use_backend(op, name):
            if fused:
                ops.fused_add_rms_norm(out, r, weight, 1e-5)
                assert torch.equal(r, total)
            else:
                ops.rms_norm(out, x, weight, 1e-5)
        assert relative_error(out, expected) < BOUND[dtype]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("weight_dtype", [None, torch.float32, "same"], ids=str)
@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("shape", [(7, 100), (3, 4, 16), (0, 8)], ids=str)
def test_layer_norm(relative_error, dtype, weight_dtype, has_bias, shape):
    wide = _randn(*shape[:-1], 2 * shape[-1], dtype=dtype) + 3
    x = wide[..., : shape[-1]]
    kind = dtype if weight_dtype == "same" else torch.float32
    weight = None if weight_dtype is None else _randn(shape[-1], seed=1).to(kind)
    bias = _randn(shape[-1], seed=2).to(kind) if has_bias else None
    out = torch.full(shape, float("nan"), dtype=dtype)
    ops.layer_norm(out, x, weight, bias, 1e-5)
    # In float64, by the definition.
    x = x.double()
    centred = x - x.mean(-1, keepdim=True)
    expected = centred / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt()
    expected = expected * (1 if weight is None else weight.double()) + (0 if bias is None else bias.double())
    assert relative_error(out, expected) < BOUND[dtype]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_layer_norm_with_a_weight_and_bias_a_head(relative_error, dtype):
    x, weight, bias = _randn(5, 3, 32, dtype=dtype), _randn(3, 32, seed=1), _randn(3, 32, seed=2)
    out = torch.empty_like(x)
    ops.layer_norm(out, x, weight, bias, 1e-6)
    for head in range(3):
        expected = F.layer_norm(x[:, head].float(), (32,), weight[head], bias[head], 1e-6)
        assert relative_error(out[:, head], expected) < BOUND[dtype]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_fused_add_layer_norm_equals_the_two_ops(dtype):
    x, residual = _randn(9, 48, dtype=dtype), _randn(9, 48, dtype=dtype, seed=1)
    weight, bias = _randn(48, seed=2), _randn(48, seed=3)
    total, expected = residual + x, torch.empty_like(x)
    ops.layer_norm(expected, total, weight, bias, 1e-5)
    ops.fused_add_layer_norm(x, residual, weight, bias, 1e-5)
    assert torch.equal(residual, total)
    assert torch.equal(x, expected)


@pytest.mark.parametrize("name", ["torch", "cpp"])
@pytest.mark.parametrize("shape", [(31,), (1, 32), (3, 31)], ids=str)
def test_a_weight_of_another_shape_is_refused(name, shape):
    out = torch.zeros(5, 3, 32)
    with ops.use_backend("rms_norm", name), pytest.raises(InvalidArgument) as caught:
        ops.rms_norm(out, _randn(5, 3, 32), torch.ones(shape), 1e-5)
    assert caught.value.field == "weight"
    assert not out.any()


def test_the_cpp_norm_refuses_a_float16_weight():
    with ops.use_backend("rms_norm", "cpp"), pytest.raises(InvalidArgument) as caught:
        ops.rms_norm(torch.zeros(2, 8), torch.ones(2, 8), torch.ones(8, dtype=torch.float16), 1e-5)
    assert caught.value.field == "weight"


@pytest.mark.parametrize(
    ("field", "change"),
    [
        ("out", {"out": torch.zeros(2, 9)}),
        ("out", {"out": torch.zeros(2, 8, dtype=torch.float16)}),
        ("weight", {"weight": torch.ones(9)}),
        ("bias", {"bias": torch.ones(2, 8)}),
        ("x", {"x": torch.ones(8)}),
    ],
)
def test_layer_norm_names_what_does_not_fit(field, change):
    given = {
        "out": torch.zeros(2, 8),
        "x": torch.ones(2, 8),
        "weight": torch.ones(8),
        "bias": torch.ones(8),
    } | change
    with pytest.raises(InvalidArgument) as caught:
        ops.layer_norm(*given.values(), 1e-5)
    assert caught.value.field == field
