"""How e4m3 products on Hopper are cut, by their shape; knows nothing of tensors and of kernels.

By measurement on an H200 (docs/performance.md).
"""

from __future__ import annotations

from typing import NamedTuple

MOST_FEW = 2
"""Up to so many tokens a kernel quantizes itself."""
LEAST_PANEL = 33
"""From so many tokens on panels are faster than the streaming kernels of `linear`."""
# Up to how many tokens panels are faster than torch's product: whole ones and those of many inputs, others.
_MOST_PANEL, _MOST_SHORT_PANEL = 192, 160
# Smaller weights were not measured.
_LEAST_SIZE = 4096

_MULTIPROCESSORS = 132
_STEP = 128  # inputs
_FEW_TILE = 8
_LEAST_FEW_BLOCKS, _MOST_SPLIT = 120, 8
# What the tokens of a block and two stages of weights leave of the shared memory.
_MOST_FEW_STEPS = 96
# Panels of 192 rows that need not be cut, and steps that are many.
_LEAST_PANELS, _MANY_STEPS = 100, 64


class PanelPlan(NamedTuple):
    """How a product is cut.

    Attributes:
        groups: Warpgroups, each of 64 rows of the weight: 2 or 3; of bfloat16 tokens 1 or 2.
        split: Parts of the inputs, whose sums are added in their order: 1, 2, 4 or 8.
        tile: Tokens of a block: 64 to 192 in steps of 32; of bfloat16 tokens 8.
        resident: Blocks that a multiprocessor shall hold.
    """

    groups: int
    split: int
    tile: int
    resident: int


def few_plan(outputs: int, inputs: int, *, gated: bool) -> PanelPlan | None:
    """For bfloat16 tokens, up to `MOST_FEW`; None: no kernel takes the product, or others are faster."""
    if min(outputs, inputs) < _LEAST_SIZE or (gated and outputs % 16 != 0):
        return None
    panels, steps = _ceil_div(outputs, 64), _ceil_div(inputs, _STEP)
    if panels <= 64 and steps <= 32 and not gated:
        return PanelPlan(2, 4, _FEW_TILE, 2)
    split = 1
    while split < _MOST_SPLIT and (panels * split < _LEAST_FEW_BLOCKS or steps > split * _MOST_FEW_STEPS):
        split *= 2
    if steps > split * _MOST_FEW_STEPS:
        return None
    return PanelPlan(1, split, _FEW_TILE, min(3, _ceil_div(panels * split, _MULTIPROCESSORS)))


def panel_plan(tokens: int, outputs: int, inputs: int) -> PanelPlan | None:
    """For tokens that are quantized; None: other kernels are faster."""
    if not LEAST_PANEL <= tokens <= _MOST_PANEL or min(outputs, inputs) < _LEAST_SIZE:
        return None
    tile, steps = max(64, _ceil_div(tokens, 32) * 32), _ceil_div(inputs, _STEP)
    if _ceil_div(outputs, 192) >= _LEAST_PANELS:
        return PanelPlan(3, 1, tile, 1)
    if steps >= _MANY_STEPS and tokens >= 128:
        return PanelPlan(3, 4, tile, 1)
    return PanelPlan(2, 2, tile, 1) if tokens <= _MOST_SHORT_PANEL else None


def _ceil_div(number: int, by: int) -> int:
    return -(-number // by)
