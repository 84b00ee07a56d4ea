"""The selective scan op of Mamba 1."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import torch

from llm_kernels.backends import torch_backend, triton_backends
from llm_kernels.metadata import AttentionMetadata
from llm_kernels.reference import selective_scan as reference_selective_scan
from llm_kernels.registry import Op

_SelectiveScan: TypeAlias = Callable[
    [
        torch.Tensor,
        torch.Tensor,
        torch.Tensor,
        torch.Tensor,
        torch.Tensor,
        torch.Tensor,
        torch.Tensor | None,
        torch.Tensor | None,
        torch.Tensor,
        AttentionMetadata,
        int,
    ],
    None,
]

SELECTIVE_SCAN: Op[_SelectiveScan] = Op(
    "selective_scan",
    [
        torch_backend(reference_selective_scan.selective_scan),
        *triton_backends("selective_scan", "selective_scan", lambda _dtype, size: size <= 256),
    ],
    default_size=16,
)


def selective_scan(
    out_TI: torch.Tensor,
    x_TI: torch.Tensor,
    dt_TI: torch.Tensor,
    A: torch.Tensor,
    B_TGS: torch.Tensor,
    C_TGS: torch.Tensor,
    D: torch.Tensor | None,
    state_cache: torch.Tensor,
    metadata: AttentionMetadata,
    *,
    block_size: int,
    dt_bias: torch.Tensor | None = None,
) -> None:
    """Mamba 1's recurrence: h_t = exp(d_t A) h_(t-1) + d_t x_t B_t, out_t = C_t h_t + D x_t.

    d = softplus(dt + dt_bias). States are read and written as `causal_conv1d` says. Gating by silu(z), and
    the norms of dt, B and C that FalconMamba and Jamba put in front, are the model's.

    Used by Mamba, FalconMamba and Jamba (G 1), and Zamba (a group of B and C for each of its Mamba heads).

    Args:
        out_TI: [T, I], dtype of x.
        x_TI: [T, I], after the convolution.
        dt_TI: [T, I], step sizes before bias and softplus.
        A: [I, S], negative: -exp(A_log).
        B_TGS: [T, S], or [T, G, S]: channel i reads group i // (I / G).
        C_TGS: Same.
        D: [I] or None.
        state_cache: [N, I, S], best float32; may be strided in dimension 0.
        metadata: The rows, decode rows first.
        block_size: Tokens from one checkpoint to the next.
        dt_bias: [I] or None.

    Raises:
        InvalidArgument: Shapes, dtypes or devices do not fit, or (CPU) a block id lies outside the cache.
    """
    B_TGS, C_TGS = (x.unsqueeze(1) if x.ndim == 2 else x for x in (B_TGS, C_TGS))
    SELECTIVE_SCAN.pick(x_TI.device, x_TI.dtype, A.shape[-1])(
        out_TI, x_TI, dt_TI, A, B_TGS, C_TGS, D, dt_bias, state_cache, metadata, block_size
    )
