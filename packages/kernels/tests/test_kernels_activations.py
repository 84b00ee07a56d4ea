"""Activations on the CPU, against transformers' own functions and the formulas of the models."""

from __future__ import annotations

import pytest
import torch
from llm_kernels import ops
from llm_kernels.errors import BackendUnavailable, InvalidArgument

# Ours, and the names transformers has for it.
NAMES = {
    "silu": ["silu", "swish"],
    "gelu": ["gelu", "gelu_python"],
    "gelu_tanh": ["gelu_new", "gelu_fast", "gelu_accurate", "gelu_pytorch_tanh", "gelu_python_tanh"],
    "gelu_10": ["gelu_10"],
    "quick_gelu": ["quick_gelu"],
    "relu": ["relu"],
    "relu2": ["relu2"],
    "relu6": ["relu6"],
    "leaky_relu": ["leaky_relu"],
    "hardswish": ["hardswish"],
    "mish": ["mish"],
    "sigmoid": ["sigmoid"],
    "tanh": ["tanh"],
    "sqrtsoftplus": ["sqrtsoftplus"],
    "laplace": ["laplace"],
    "identity": ["linear"],
}
BOUND = {torch.float32: 2e-6, torch.bfloat16: 4e-3, torch.float16: 6e-4}


def _randn(*shape, dtype=torch.float32, seed=0):
    return (torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * 4).to(dtype)


@pytest.mark.parametrize("dtype", list(BOUND), ids=str)
@pytest.mark.parametrize(("kind", "theirs"), [(k, n) for k, names in NAMES.items() for n in names])
def test_activation_is_that_of_transformers(relative_error, dtype, kind, theirs):
    functions = pytest.importorskip("transformers.activations").ACT2FN
    x = _randn(3, 1000, dtype=dtype)
    expected = functions[theirs](x.float())
    out = torch.empty_like(x)
    ops.activation(out, x, kind)
    assert relative_error(out, expected) < BOUND[dtype]
    ops.activation(x, x, kind)
    assert torch.equal(x, out)


def test_xielu_is_that_of_transformers(relative_error):
    activations = pytest.importorskip("transformers.activations")
    module = activations.XIELUActivation(alpha_p_init=0.6, alpha_n_init=1.3, beta=0.4, dtype=torch.float32)
    x = _randn(3, 100)
    parameters = torch.stack(
        [
            torch.nn.functional.softplus(module.alpha_p)[0],
            module.beta + torch.nn.functional.softplus(module.alpha_n)[0],
            module.beta,
        ]
    ).detach()
    out = torch.empty_like(x)
    ops.activation(out, x, "xielu", parameters=parameters)
    assert relative_error(out, module._xielu_python(x).detach()) < 1e-6


@pytest.mark.parametrize("kind", list(NAMES))
def test_gates_apply_the_activation_to_the_first_half(relative_error, kind):
    gate_up = _randn(5, 2 * 33)
    activated, out = torch.empty(5, 33), torch.empty(5, 33)
    ops.activation(activated, gate_up[:, :33], kind)
    ops.gated_activation(out, gate_up, kind)
    assert relative_error(out, activated * gate_up[:, 33:]) < 1e-6


def test_the_clamped_gate_of_gpt_oss(relative_error):
    gate_up = _randn(7, 2 * 50) * 3
    gate, up = gate_up.chunk(2, dim=-1)
    gate, up = gate.clamp(max=7.0), up.clamp(-7.0, 7.0)
    out = torch.empty(7, 50)
    ops.gated_activation(out, gate_up, limit=7.0, alpha=1.702)
    assert relative_error(out, (up + 1) * gate * torch.sigmoid(1.702 * gate)) < 1e-6
    ops.gated_activation(out, gate_up, limit=7.0)
    assert relative_error(out, torch.nn.functional.silu(gate) * up) < 1e-6


def test_the_plain_kinds_stay_with_cpp():
    gate_up, out = torch.ones(1, 4), torch.empty(1, 2)
    with ops.use_backend("gated_activation", "cpp"):
        for kind in ("silu", "gelu", "gelu_tanh"):
            ops.gated_activation(out, gate_up, kind)
        for changed in ({"kind": "relu2"}, {"limit": 1.0}, {"alpha": 1.0}):
            with pytest.raises(BackendUnavailable):
                ops.gated_activation(out, gate_up, **changed)


@pytest.mark.parametrize(
    ("field", "given"),
    [
        ("kind", {"kind": "swish"}),
        ("kind", {"kind": "xielu"}),
        ("limit", {"limit": 0.0}),
        ("limit", {"limit": float("nan")}),
        ("alpha", {"kind": "gelu", "alpha": 1.0}),
    ],
)
def test_bad_gates_are_refused(field, given):
    out = torch.zeros(1, 2)
    with pytest.raises(InvalidArgument) as caught:
        ops.gated_activation(out, torch.ones(1, 4), **given)
    assert caught.value.field == field
    assert not out.any()


@pytest.mark.parametrize(
    ("field", "given"),
    [
        ("kind", {"kind": "swish"}),
        ("parameters", {"kind": "xielu"}),
        ("parameters", {"kind": "silu", "parameters": torch.ones(3)}),
        ("parameters", {"kind": "xielu", "parameters": torch.ones(2)}),
        ("x", {"kind": "silu", "x": torch.ones(1, 3)}),
        ("x", {"kind": "silu", "x": torch.ones(1, 2, dtype=torch.float16)}),
    ],
)
def test_bad_activations_are_refused(field, given):
    out = torch.zeros(1, 2)
    with pytest.raises(InvalidArgument) as caught:
        ops.activation(out, **({"x": torch.ones(1, 2)} | given))
    assert caught.value.field == field
    assert not out.any()
