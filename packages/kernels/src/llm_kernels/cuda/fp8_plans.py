"""How e4m3 products on Hopper are cut, by their shape; knows nothing of tensors and of kernels.

By measurement on an H200 (docs/performance.md).
"""

from __future__ import annotations

from typing import NamedTuple

MOST_FEW = 2
"""Up to so many tokens a kernel quantizes itself."""


class PanelPlan(NamedTuple):
    """How a product is cut.

    Attributes:
        groups: Warpgroups, each of 64 rows of the weight: 2 or 3; of bfloat16 tokens 1 or 2.
        split: Parts of the inputs, whose sums are added in their order: 1, 2, 4 or 8.
        tile: Tokens of a block: 64 to 256 in steps of 32; of bfloat16 tokens 8.
        resident: Blocks that a multiprocessor shall hold.
        share: Panels that copy the tokens together: 1, or 2 with a split of 4 at most; of bfloat16 tokens 1.
    """

    groups: int
    split: int
    tile: int
    resident: int
    share: int = 1


def few_plan(outputs: int, inputs: int, *, gated: bool) -> PanelPlan | None:  # noqa: ARG001 - not yet measured
    """For bfloat16 tokens, up to `MOST_FEW`; None: other kernels are faster."""
    return None


def panel_plan(tokens: int, outputs: int, inputs: int, *, gated: bool) -> PanelPlan | None:  # noqa: ARG001
    """For tokens that are quantized; None: other kernels are faster."""
    return None
