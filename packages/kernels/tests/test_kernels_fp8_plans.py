"""How e4m3 products are cut: within what the kernels have, and as measured for the measured shapes."""

from __future__ import annotations

import itertools

import pytest
from llm_kernels.cuda.fp8_plans import LEAST_PANEL, PanelPlan, few_plan, panel_plan

QWEN3_8B = [(6144, 4096), (4096, 4096), (24576, 4096), (4096, 12288)]
SIZES = [16, 64, 128, 832, 1024, 4096, 8192, 24576, 57344, 151936]


@pytest.mark.parametrize(
    ("outputs", "inputs"), itertools.product(SIZES, [16, 1024, 4096, 4112, 28672, 131072])
)
def test_plans_are_such_that_kernels_have(outputs, inputs):
    steps = -(-inputs // 128)
    for gated in (False, True):
        plan = few_plan(outputs, inputs, gated=gated)
        if plan is not None:
            assert plan.groups in (1, 2)
            assert plan.split in (1, 2, 4, 8)
            assert plan.split <= steps <= 96 * plan.split
            assert plan.tile == 8
            assert 1 <= plan.resident <= 3
    for tokens in (1, LEAST_PANEL, 64, 100, 128, 160, 192, 200, 4096):
        plan = panel_plan(tokens, outputs, inputs)
        if plan is not None:
            assert plan.groups in (2, 3)
            assert plan.split in (1, 2, 4)
            assert plan.split <= steps
            assert max(tokens, 64) <= plan.tile <= 192
            assert plan.tile % 32 == 0


def test_the_measured_shapes():
    few = [few_plan(*shape, gated=shape == (24576, 4096)) for shape in QWEN3_8B]
    assert few == [PanelPlan(1, 2, 8, 2), PanelPlan(2, 4, 8, 2), PanelPlan(1, 1, 8, 3), PanelPlan(1, 2, 8, 1)]
    whole, short = PanelPlan(3, 1, 128, 1), PanelPlan(2, 2, 128, 1)
    assert [panel_plan(128, *shape) for shape in QWEN3_8B] == [short, short, whole, PanelPlan(3, 4, 128, 1)]
    whole = PanelPlan(3, 1, 192, 1)
    assert [panel_plan(192, *shape) for shape in QWEN3_8B] == [None, None, whole, PanelPlan(3, 4, 192, 1)]
    for tokens in (32, 193, 256):
        assert [panel_plan(tokens, *shape) for shape in QWEN3_8B] == [None] * 4
