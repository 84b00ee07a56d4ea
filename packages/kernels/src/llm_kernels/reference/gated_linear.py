"""The gated linear layer in torch, float32 inside; the meaning of `gated_linear`."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from llm_kernels.reference.activation import gated
from llm_kernels.reference.quantize_fp8 import dequantize_weight


def gated_linear(
    x: torch.Tensor,
    weight: torch.Tensor,
    kind: str,
    bias: torch.Tensor | None,
    weight_scale: torch.Tensor | None,
) -> torch.Tensor:
    """Reference of `ops.gated_linear`: product and activation in float32, rounded once."""
    wide = weight.float() if weight_scale is None else dequantize_weight(weight, weight_scale)
    gate_up = F.linear(x.float(), wide, None if bias is None else bias.float())
    return gated(gate_up, kind, None, None).to(x.dtype)
