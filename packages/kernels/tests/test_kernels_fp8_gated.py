"""The gated projection between quantized activations on the CPU: the steps it stands for, and its errors."""

from __future__ import annotations

import pytest
import torch
from llm_kernels import ops
from llm_kernels.errors import InvalidArgument
from llm_kernels.fp8_format import E4M3
from llm_kernels.reference.quantize_fp8 import dequantize_activation, dequantize_weight


@pytest.fixture
def problem():
    """Quantized tokens [5, 96] and a weight [320, 96] with a scale an output."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(5, 96, generator=generator)
    values, scales = torch.empty(5, 96, dtype=E4M3), torch.empty(5, 1)
    ops.quantize_fp8(values, scales, x)
    weight = torch.randn(320, 96, generator=generator).mul(100).clamp(-448, 448).to(E4M3)
    return values, scales, weight, torch.rand(320, generator=generator) * 1e-3 + 1e-4


def _room(groups: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.empty(5, 160, dtype=E4M3), torch.full((groups, 5), float("nan")).t()


@pytest.mark.parametrize("backend", ["torch", "composed"])
@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("kind", ["silu", "gelu_tanh"])
@pytest.mark.parametrize("has_bias", [False, True])
def test_it_is_product_activation_and_quantization(problem, backend, groups, kind, has_bias):
    values, scales, weight, weight_scale = problem
    bias = torch.linspace(-1, 1, 320) if has_bias else None
    found, wanted = _room(groups), _room(groups)
    with ops.use_backend("fp8_gated_product", backend):
        ops.fp8_gated_product(*found, values, scales, weight, weight_scale, kind, bias, dtype=torch.float32)
    gate_up = dequantize_activation(values, scales) @ dequantize_weight(weight, weight_scale).T
    gate_up = gate_up if bias is None else gate_up + bias
    inner = torch.empty(5, 160)
    ops.gated_activation(inner, gate_up, kind)
    ops.quantize_fp8(*wanted, inner)
    torch.testing.assert_close(found[1], wanted[1], rtol=1e-5, atol=0)
    assert (found[0].float() != wanted[0].float()).float().mean() < 0.01


def test_the_composed_one_is_chosen_on_a_cpu():
    assert ops.selected("fp8_gated_product", torch.device("cpu"), torch.float32) == "composed"


@pytest.mark.parametrize(
    ("field", "change"),
    [
        ("inner_values_TI", {0: torch.empty(5, 96, dtype=E4M3)}),
        ("scales_TG", {1: torch.empty(5, 3)}),
        ("weight_OI", {4: torch.empty(320, 48, dtype=E4M3)}),
        ("kind", {6: "xielu"}),
    ],
)
def test_errors_name_the_field(problem, field, change):
    arguments = [*_room(1), *problem, "silu"]
    for index, value in change.items():
        arguments[index] = value
    with pytest.raises(InvalidArgument) as error:
        ops.fp8_gated_product(*arguments, dtype=torch.float32)
    assert error.value.field == field
