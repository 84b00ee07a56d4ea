"""The panel products of e4m3 on Hopper, every cut of them, against float32 products of what was quantized."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from llm_kernels import ops
from llm_kernels.errors import InvalidArgument
from llm_kernels.fp8_format import E4M3, num_groups
from llm_kernels.reference.quantize_fp8 import dequantize_activation, dequantize_weight

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0), reason="needs Hopper"
    ),
]

SPLITS = [1, 2, 4, 8]
# Outputs and inputs: the last panel is not full, and in the second case neither is the last step.
SHAPES = [(832, 4096), (400, 1168)]
# Nothing is rounded but the result, and sums within the tensor cores. What the kernel quantizes itself may be
# the neighbouring number of the reference's.
ROUNDED, QUANTIZED = 6e-3, 2e-2


def _randn(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator("cuda").manual_seed(seed), device="cuda").to(dtype)


def _weight(outputs: int, inputs: int) -> tuple[torch.Tensor, torch.Tensor]:
    values = (_randn(outputs, inputs, seed=1) * 100).clamp(-448, 448).to(E4M3)
    return values, _randn(outputs, seed=2).abs() * 1e-3 + 1e-4


def _quantized(x: torch.Tensor, groups: int) -> tuple[torch.Tensor, torch.Tensor]:
    values = torch.empty(x.shape, dtype=E4M3, device="cuda")
    scales = torch.empty(groups, x.shape[0], device="cuda").t()
    ops.quantize_fp8(values, scales, x)
    return values, scales


def _wanted(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, gate: int) -> torch.Tensor:
    out = F.linear(x, weight, None if bias is None else bias.float())
    if not gate:
        return out
    inner = out.shape[1] // 2
    return F.silu(out[:, :inner]) * out[:, inner:]


def _check(given, scales, weight, scale, bias, gate, plan, wanted, bound=ROUNDED) -> None:
    from llm_kernels.cuda.fp8_panels import panels

    found = []
    for _ in range(2):
        out = torch.full(wanted.shape, float("nan"), dtype=torch.bfloat16, device="cuda")
        panels(out, given, scales, weight, scale, bias, gate, plan)
        found.append(out)
    assert float((found[0].float() - wanted).norm() / wanted.norm()) < bound
    assert torch.equal(*found)


@pytest.mark.parametrize("tile", [64, 96, 128, 160, 192])
@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("groups", [2, 3])
def test_quantized_tokens(groups, split, tile):
    from llm_kernels.cuda.fp8_panels import PanelPlan

    for tokens, (outputs, inputs), has_bias in (
        (tile - 3, SHAPES[0], False),
        (2 * tile - 60, SHAPES[1], True),
    ):
        weight, scale = _weight(outputs, inputs)
        bias = _randn(outputs, dtype=torch.bfloat16, seed=3) if has_bias else None
        values, scales = _quantized(_randn(tokens, inputs, dtype=torch.bfloat16), 1)
        wide = dequantize_activation(values, scales)
        wanted = _wanted(wide, dequantize_weight(weight, scale), bias, 0)
        plan = PanelPlan(groups, split, tile, 2 if tile == 128 else 1)
        _check(values, scales, weight, scale, bias, 0, plan, wanted)


@pytest.mark.parametrize("gate", [0, 1])
@pytest.mark.parametrize("tokens", [1, 3, 8])
@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("groups", [1, 2])
def test_tokens_that_the_kernel_quantizes(groups, split, tokens, gate):
    from llm_kernels.cuda.fp8_panels import PanelPlan

    for outputs, inputs in (*SHAPES, *([(4096, 12288)] if split > 1 else [])):
        weight, scale = _weight(outputs, inputs)
        bias = _randn(outputs, dtype=torch.bfloat16, seed=3) if outputs == 400 else None
        x = _randn(tokens, inputs, dtype=torch.bfloat16)
        wide = dequantize_activation(*_quantized(x, num_groups(inputs)))
        wanted = _wanted(wide, dequantize_weight(weight, scale), bias, gate)
        for resident in (1, 3):
            plan = PanelPlan(groups, split, 8, resident)
            _check(x, None, weight, scale, bias, gate, plan, wanted, QUANTIZED)


def test_one_scale_for_all_and_rows_apart():
    from llm_kernels.cuda.fp8_panels import PanelPlan

    weight, _ = _weight(832, 1024)
    scale = torch.tensor(3e-4, device="cuda")
    values, scales = _quantized(_randn(100, 1024, dtype=torch.bfloat16), 1)
    apart = torch.zeros(100, 1280, dtype=torch.uint8, device="cuda").view(E4M3)[:, :1024]
    apart.view(torch.uint8).copy_(values.view(torch.uint8))
    wanted = _wanted(dequantize_activation(values, scales), dequantize_weight(weight, scale), None, 0)
    _check(apart, scales, weight, scale, None, 0, PanelPlan(2, 1, 128, 1), wanted)


def test_nan_stays_in_its_row():
    from llm_kernels.cuda.fp8_panels import PanelPlan, panels

    weight, scale = _weight(832, 1024)
    for tokens, plan in ((8, PanelPlan(1, 2, 8, 1)), (100, PanelPlan(2, 2, 128, 1))):
        x = _randn(tokens, 1024, dtype=torch.bfloat16)
        x[2, 17] = float("nan")
        given, scales = (x, None) if tokens == 8 else _quantized(x, 1)
        out = torch.empty(tokens, 832, dtype=torch.bfloat16, device="cuda")
        panels(out, given, scales, weight, scale, None, 0, plan)
        assert out[2].isnan().all()
        assert not torch.cat((out[:2], out[3:])).isnan().any()


@pytest.mark.parametrize(
    ("plan", "field"),
    [
        ((4, 1, 128, 1), "groups"),
        ((2, 3, 128, 1), "split"),
        ((2, 1, 224, 1), "tile"),
    ],
)
def test_plans_that_no_kernel_has(plan, field):
    from llm_kernels.cuda.fp8_panels import PanelPlan, panels

    weight, scale = _weight(832, 1024)
    values, scales = _quantized(_randn(64, 1024, dtype=torch.bfloat16), 1)
    out = torch.empty(64, 832, dtype=torch.bfloat16, device="cuda")
    with pytest.raises(InvalidArgument, match=field):
        panels(out, values, scales, weight, scale, None, 0, PanelPlan(*plan))
