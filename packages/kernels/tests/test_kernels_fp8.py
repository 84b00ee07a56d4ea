"""The e4m3 ops on the CPU: against float32, the shapes of scales, errors; GPU cases are in another file."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from llm_kernels import ops
from llm_kernels.errors import InvalidArgument
from llm_kernels.fp8_format import E4M3, E4M3_MAX
from llm_kernels.reference.quantize_fp8 import dequantize_activation, dequantize_weight


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)
    torch.set_num_threads(1)


@pytest.fixture
def make_weight():
    """Values, scales, and the float32 weight that they stand for."""

    def make(outputs: int, inputs: int, kind: str, seed: int = 0):
        generator = torch.Generator().manual_seed(seed)
        values = torch.randn(outputs, inputs, generator=generator).mul(100).clamp(-448, 448).to(E4M3)
        shape = {"tensor": (), "channel": (outputs,), "block": (-(-outputs // 128), -(-inputs // 128))}[kind]
        scales = torch.rand(shape, generator=generator) * 0.01 + 0.001
        if kind == "block":
            whole = torch.empty(outputs, inputs)
            for o in range(outputs):
                for i in range(inputs):
                    whole[o, i] = values[o, i].float() * scales[o // 128, i // 128]
        else:
            whole = values.float() * (scales if kind == "tensor" else scales[:, None])
        return values, scales, whole

    return make


@pytest.mark.parametrize("kind", ["tensor", "channel", "block"])
@pytest.mark.parametrize(("outputs", "inputs"), [(48, 32), (130, 200)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_linear_is_the_product_with_the_weight_that_it_stands_for(make_weight, kind, outputs, inputs, dtype):
    values, scales, whole = make_weight(outputs, inputs, kind)
    x, bias = torch.randn(5, inputs).to(dtype), torch.randn(outputs).to(dtype)
    out = ops.fp8_linear(x, values, scales, bias)
    assert out.dtype == dtype
    torch.testing.assert_close(out, F.linear(x.float(), whole, bias.float()).to(dtype))
    assert torch.equal(dequantize_weight(values, scales), whole)


@pytest.mark.parametrize("groups", [1, 3])
def test_quantized_values_are_within_half_a_step(groups):
    x = torch.randn(7, 300) * torch.rand(7, 1).exp()
    x[3] = 0.0
    values, scales = torch.empty(7, 300, dtype=E4M3), torch.empty(groups, 7).t()
    ops.quantize_fp8(values, scales, x)
    found = dequantize_activation(values, scales)
    step = (x.abs() / 16).clamp_min(scales.amax(dim=1, keepdim=True) / 512)
    assert ((found - x).abs() <= step * 1.0001).all()
    width = 300 if groups == 1 else 128
    largest = torch.stack([part.abs().amax(dim=1) for part in x.split(width, dim=1)], dim=1)
    torch.testing.assert_close(scales[:3] * E4M3_MAX, largest[:3])
    assert not values[3].float().any()


def test_a_given_scale_is_taken_and_cuts_off():
    x = torch.tensor([[1.0, -900.0, 3.0]])
    values, scales = torch.empty(1, 3, dtype=E4M3), torch.empty(1, 1)
    ops.quantize_fp8(values, scales, x, scale=torch.tensor(2.0))
    assert scales.item() == 2.0
    assert dequantize_activation(values, scales).tolist() == [[1.0, -896.0, 3.0]]


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("with_residual", [False, True])
def test_the_norm_equals_norm_then_quantization(groups, with_residual):
    x, weight, residual = torch.randn(4, 256), torch.rand(256), torch.randn(4, 256)
    normed, total = torch.empty_like(x), residual + x
    ops.rms_norm(normed, total if with_residual else x, weight, 1e-6)
    wanted, found = ((torch.empty(4, 256, dtype=E4M3), torch.empty(4, groups)) for _ in range(2))
    ops.quantize_fp8(*wanted, normed)
    ops.rms_norm_fp8(*found, x, weight, 1e-6, residual_TI=residual if with_residual else None)
    torch.testing.assert_close(found[1], wanted[1])
    torch.testing.assert_close(found[0].float(), wanted[0].float(), rtol=0.13, atol=0.01)
    if with_residual:
        assert torch.equal(residual, total)


def test_the_gate_equals_gate_then_quantization():
    gate_up = torch.randn(4, 512)
    inner = torch.empty(4, 256)
    ops.gated_activation(inner, gate_up, "gelu_tanh")
    wanted, found = ((torch.empty(4, 256, dtype=E4M3), torch.empty(4, 2)) for _ in range(2))
    ops.quantize_fp8(*wanted, inner)
    ops.gated_activation_fp8(*found, gate_up, "gelu_tanh")
    torch.testing.assert_close(found[1], wanted[1])
    torch.testing.assert_close(found[0].float(), wanted[0].float(), rtol=0.13, atol=0.01)


@pytest.mark.parametrize(("kind", "groups"), [("channel", 1), ("block", 1), ("block", 2)])
def test_the_product_takes_quantized_activations(make_weight, kind, groups):
    values, scales, whole = make_weight(48, 256, kind)
    x = torch.randn(3, 256)
    x_values, x_scales = torch.empty(3, 256, dtype=E4M3), torch.empty(3, groups)
    ops.quantize_fp8(x_values, x_scales, x)
    out = ops.fp8_product(x_values, x_scales, values, scales, dtype=torch.bfloat16)
    assert out.dtype == torch.bfloat16
    wanted = F.linear(dequantize_activation(x_values, x_scales), whole)
    torch.testing.assert_close(out, wanted.bfloat16())


@pytest.mark.parametrize(
    ("field", "change"),
    [
        ("x_TI", {"x": torch.zeros(2, 3, 32)}),
        ("weight_OI", {"weight": torch.zeros(16, 24, dtype=E4M3)}),
        ("weight_OI", {"weight": torch.zeros(16, 32)}),
        ("weight_scale", {"scale": torch.ones(17)}),
        ("weight_scale", {"scale": torch.ones(16, dtype=torch.bfloat16)}),
        ("weight_scale", {"scale": torch.ones(2, 1)}),
        ("bias_O", {"bias": torch.zeros(15)}),
        ("input_scale", {"input_scale": torch.ones(2)}),
    ],
)
def test_bad_arguments_are_named(field, change):
    given = {
        "x": torch.zeros(2, 32),
        "weight": torch.zeros(16, 32, dtype=E4M3),
        "scale": torch.ones(16),
        "bias": None,
        "input_scale": None,
    } | change
    with pytest.raises(InvalidArgument) as caught:
        ops.fp8_linear(
            given["x"], given["weight"], given["scale"], given["bias"], input_scale=given["input_scale"]
        )
    assert caught.value.field == field


def test_scales_a_group_go_with_blocks_only():
    values = torch.zeros(2, 256, dtype=E4M3)
    with pytest.raises(InvalidArgument, match="scales_TG"):
        ops.fp8_product(
            values, torch.ones(2, 2), torch.zeros(16, 256, dtype=E4M3), torch.ones(16), dtype=torch.float32
        )
    with pytest.raises(InvalidArgument, match="scales_TG"):
        ops.quantize_fp8(values, torch.ones(2, 3), torch.zeros(2, 256))
