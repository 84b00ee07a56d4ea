"""Products of some ten to some hundred e4m3 tokens in CUDA C++ for Hopper: wrappers of fp8_panels in csrc.

Which products, and how they are cut: `fp8_plans`.
"""

from __future__ import annotations

import torch

from llm_kernels.cuda.fp8_plans import PanelPlan
from llm_kernels.cuda.library import invalid, native

__all__ = ["PanelPlan", "panels"]

_fp8_panels = native("fp8_panels")


def panels(
    out: torch.Tensor,
    values_TI: torch.Tensor,
    scales_T1: torch.Tensor | None,
    weight_OI: torch.Tensor,
    weight_scale: torch.Tensor,
    bias_O: torch.Tensor | None,
    gate: int,
    plan: PanelPlan,
) -> None:
    """One launch into `out`.

    Args:
        out: bfloat16 [T, O] or, with a gate, [T, O / 2].
        values_TI: float8_e4m3fn or bfloat16 [T, I].
        scales_T1: float32 [T, 1]; None: the values are bfloat16, up to 8 tokens of them, and are quantized
            with a scale a token and 128 inputs.
        weight_OI: float8_e4m3fn [O, I]; with a gate the gate's rows first.
        weight_scale: float32, one value or [O].
        bias_O: bfloat16 [O] or None.
        gate: 0: none, 1: silu, 2: gelu, 3: gelu_tanh.
        plan: How the product is cut.

    Raises:
        InvalidArgument: Shapes, dtypes or addresses that no kernel takes.
    """
    try:
        _fp8_panels(out, values_TI, scales_T1, weight_OI, weight_scale, bias_O, gate, *plan, True)
    except ValueError as error:
        raise invalid(error) from None
