"""The linear layer of a normed residual stream in torch, float32 inside; the meaning of `normed_linear`."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from llm_kernels.reference.activation import gated
from llm_kernels.reference.norm import rms_norm
from llm_kernels.reference.quantize_fp8 import dequantize_weight


def normed_linear(
    x: torch.Tensor,
    residual: torch.Tensor | None,
    norm_weight: torch.Tensor | None,
    eps: float,
    weight: torch.Tensor,
    kind: str | None,
    bias: torch.Tensor | None,
    weight_scale: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Reference of `ops.normed_linear`."""
    stream = x if residual is None else residual + x
    normal = torch.empty_like(stream)
    rms_norm(normal, stream, norm_weight, eps)
    wide = weight.float() if weight_scale is None else dequantize_weight(weight, weight_scale)
    product = F.linear(normal.float(), wide, None if bias is None else bias.float())
    out = product if kind is None else gated(product, kind, None, None)
    return out.to(x.dtype), stream
