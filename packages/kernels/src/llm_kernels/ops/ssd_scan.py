"""The state space scan op of Mamba 2."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeAlias

import torch

from llm_kernels.backends import torch_backend, triton_backends
from llm_kernels.metadata import AttentionMetadata
from llm_kernels.reference import ssd_scan as reference_ssd_scan
from llm_kernels.registry import Op

_SsdScan: TypeAlias = Callable[
    [
        torch.Tensor,
        torch.Tensor,
        torch.Tensor,
        torch.Tensor,
        torch.Tensor,
        torch.Tensor,
        torch.Tensor | None,
        torch.Tensor | None,
        tuple[float, float],
        torch.Tensor,
        AttentionMetadata,
        int,
    ],
    None,
]

SSD_SCAN: Op[_SsdScan] = Op(
    "ssd_scan",
    [
        torch_backend(reference_ssd_scan.ssd_scan),
        *triton_backends("ssd_scan", "ssd_scan", lambda _dtype, size: size <= 256),
    ],
)


def ssd_scan(
    out_THP: torch.Tensor,
    x_THP: torch.Tensor,
    dt_TH: torch.Tensor,
    A: torch.Tensor,
    B_TGS: torch.Tensor,
    C_TGS: torch.Tensor,
    D: torch.Tensor | None,
    state_cache: torch.Tensor,
    metadata: AttentionMetadata,
    *,
    block_size: int,
    dt_bias: torch.Tensor | None = None,
    dt_limit: tuple[float, float] = (0.0, math.inf),
) -> None:
    """Mamba 2's recurrence: h_t = exp(d_t A) h_(t-1) + d_t x_t B_t^T, out_t = h_t C_t + D x_t.

    d = clamp(softplus(dt + dt_bias), *dt_limit), for every token (transformers leaves the clamp out when it
    decodes). States are read and written as `causal_conv1d` says. The gated norm behind is the model's.

    Used by Mamba 2, Bamba, FalconH1, GraniteMoeHybrid, NemotronH and Zamba2.

    Args:
        out_THP: [T, H, P], dtype of x.
        x_THP: [T, H, P], after the convolution; may be a strided view with a contiguous last dimension.
        dt_TH: [T, H], step sizes before bias and softplus.
        A: [H], negative: -exp(A_log).
        B_TGS: [T, G, S]; head h reads group h // (H / G).
        C_TGS: Same.
        D: [H], [H, P] or None.
        state_cache: [N, H, P, S], best float32; may be strided in dimension 0.
        metadata: The rows, decode rows first.
        block_size: Tokens from one checkpoint to the next.
        dt_bias: [H] or None.
        dt_limit: Least and greatest step size after softplus.

    Raises:
        InvalidArgument: Shapes, dtypes or devices do not fit, or (CPU) a block id lies outside the cache.
    """
    SSD_SCAN.pick(x_THP.device, x_THP.dtype, B_TGS.shape[-1])(
        out_THP, x_THP, dt_TH, A, B_TGS, C_TGS, D, dt_bias, dt_limit, state_cache, metadata, block_size
    )
