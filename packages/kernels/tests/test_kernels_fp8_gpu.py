"""The e4m3 ops on a CUDA device, compiled, against float32."""

from __future__ import annotations

import itertools

import pytest
import torch
from llm_kernels import ops
from llm_kernels.fp8_format import E4M3, num_groups
from llm_kernels.reference.quantize_fp8 import dequantize_activation, dequantize_weight

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

# Outputs and inputs: Qwen3-8B's qkv, output, gate and up, down; and sizes that torch's product does not take.
QWEN3_8B = [(6144, 4096), (4096, 4096), (24576, 4096), (4096, 12288)]
ODD = [(200, 144), (576, 7168), (130, 72)]
TOKENS = [1, 16, 64, 256, 4096]
# Half a step of e4m3 is at most 1/16 of a number, some 2.7 % on the average of activations.
ROUNDED = 0.04


def _randn(*shape, dtype=torch.float32, seed=0):
    return torch.randn(shape, generator=torch.Generator("cuda").manual_seed(seed), device="cuda").to(dtype)


def _weight(outputs, inputs, kind):
    values = (_randn(outputs, inputs, seed=1) * 100).clamp(-448, 448).to(E4M3)
    shape = {"tensor": (), "channel": (outputs,), "block": (num_groups(outputs), num_groups(inputs))}[kind]
    return values, _randn(*shape, seed=2).abs() * 1e-4 + 1e-5


def _error(found, wanted):
    return float((found.float() - wanted.float()).norm() / wanted.float().norm())


@pytest.mark.parametrize("kind", ["tensor", "channel", "block"])
@pytest.mark.parametrize(("outputs", "inputs"), [*QWEN3_8B, *ODD])
@pytest.mark.parametrize("tokens", TOKENS)
def test_linear(tokens, outputs, inputs, kind):
    weight, scale = _weight(outputs, inputs, kind)
    x, bias = _randn(tokens, inputs, dtype=torch.bfloat16), _randn(outputs, dtype=torch.bfloat16)
    wanted = x.float() @ dequantize_weight(weight, scale).T + bias.float()
    found = ops.fp8_linear(x, weight, scale, bias)
    assert found.dtype == torch.bfloat16
    assert _error(found, wanted) < ROUNDED
    static = ops.fp8_linear(x, weight, scale, bias, input_scale=torch.tensor(0.02, device="cuda"))
    assert _error(static, wanted) < ROUNDED


@pytest.mark.parametrize("kind", ["channel", "block"])
@pytest.mark.parametrize(
    ("dtype", "outputs", "inputs", "tokens"),
    [
        # bfloat16 goes to torch where the sizes are even; 640 and 768 inputs are odd for its blocks.
        *itertools.product([torch.bfloat16], [6144, 576, 200], [4096, 768, 640, 144], [1, 33, 300]),
        *itertools.product([torch.float32, torch.float16], [6144], [4096], [33, 300]),
        *itertools.product([torch.float32, torch.float16], [130], [72], [33]),
    ],
)
def test_product_of_quantized_activations(tokens, outputs, inputs, dtype, kind):
    """Nothing is rounded but the result: tighter than the bound of the whole layer."""
    weight, scale = _weight(outputs, inputs, kind)
    groups = num_groups(inputs) if kind == "block" else 1
    values = torch.empty(tokens, inputs, dtype=E4M3, device="cuda")
    scales = torch.empty(groups, tokens, device="cuda").t()
    ops.quantize_fp8(values, scales, _randn(tokens, inputs, dtype=dtype))
    wanted = dequantize_activation(values, scales) @ dequantize_weight(weight, scale).T
    found = ops.fp8_product(values, scales, weight, scale, dtype=dtype)
    assert found.dtype == dtype
    assert _error(found, wanted) < 4e-3


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("grouped", [False, True])
@pytest.mark.parametrize("size", [4096, 12288, 200, 28672])
@pytest.mark.parametrize("source", ["plain", "scale", "norm", "add_norm", "gate"])
def test_quantization(source, size, grouped, dtype):
    x = _randn(300, 2 * size if source == "gate" else size, dtype=dtype)
    weight, residual = _randn(size, dtype=dtype, seed=3), _randn(300, size, dtype=dtype, seed=4)
    found, sums = [], []
    for backend in ("torch", "triton"):
        values = torch.zeros(300, size, dtype=E4M3, device="cuda")
        scales = torch.full((num_groups(size) if grouped else 1, 300), float("nan"), device="cuda").t()
        total = residual.clone()
        names = ("quantize_fp8", "rms_norm_fp8", "gated_activation_fp8")
        with (
            ops.use_backend(names[0], backend),
            ops.use_backend(names[1], backend),
            ops.use_backend(names[2], backend),
        ):
            if source in ("plain", "scale"):
                scale = torch.tensor(0.004, device="cuda") if source == "scale" else None
                ops.quantize_fp8(values, scales, x, scale=scale)
            elif source == "gate":
                ops.gated_activation_fp8(values, scales, x)
            else:
                into = total if source == "add_norm" else None
                ops.rms_norm_fp8(values, scales, x, weight, 1e-6, residual_TI=into)
        found.append((values, scales))
        sums.append(total)
    torch.testing.assert_close(found[1][1], found[0][1], rtol=1e-4, atol=0)
    wrong = found[1][0].float() != found[0][0].float()
    assert wrong.float().mean() < 0.01
    torch.testing.assert_close(found[1][0].float(), found[0][0].float(), rtol=0.13, atol=0.002)
    assert torch.equal(sums[1], sums[0])


def test_nan_is_kept():
    x = _randn(4, 4096, dtype=torch.bfloat16)
    x[2, 17] = float("nan")
    weight, scale = _weight(4096, 4096, "channel")
    out = ops.fp8_linear(x, weight, scale)
    assert out[2].isnan().all()
    assert not out[[0, 1, 3]].isnan().any()
    static = ops.fp8_linear(x, weight, scale, input_scale=torch.tensor(0.02, device="cuda"))
    assert static[2].isnan().all()


def test_a_graph_replays_it():
    x = _randn(64, 4096, dtype=torch.bfloat16)
    cases = [(*_weight(6144, 4096, kind),) for kind in ("channel", "block")]
    for weight, scale in cases:
        ops.fp8_linear(x, weight, scale)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        outs = [ops.fp8_linear(x, weight, scale) for weight, scale in cases]
    x.copy_(_randn(64, 4096, dtype=torch.bfloat16, seed=9))
    graph.replay()
    for out, (weight, scale) in zip(outs, cases, strict=True):
        assert _error(out, x.float() @ dequantize_weight(weight, scale).T) < ROUNDED
