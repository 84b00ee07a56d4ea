"""The linear attention op with a constant decay a head."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import torch

from llm_kernels.backends import torch_backend, triton_backends
from llm_kernels.metadata import AttentionMetadata
from llm_kernels.reference import linear_attention as reference_linear_attention
from llm_kernels.registry import Op

_LinearAttention: TypeAlias = Callable[
    [
        torch.Tensor,
        torch.Tensor,
        torch.Tensor,
        torch.Tensor,
        torch.Tensor,
        torch.Tensor,
        AttentionMetadata,
        int,
        float,
    ],
    None,
]

LINEAR_ATTENTION: Op[_LinearAttention] = Op(
    "linear_attention",
    [
        torch_backend(reference_linear_attention.linear_attention),
        *triton_backends("linear_attention", "linear_attention", lambda _dtype, size: size <= 256),
    ],
)


def linear_attention(
    out_THV: torch.Tensor,
    query_TGK: torch.Tensor,
    key_TGK: torch.Tensor,
    value_THV: torch.Tensor,
    slope: torch.Tensor,
    state_cache: torch.Tensor,
    metadata: AttentionMetadata,
    *,
    block_size: int,
    scale: float = 1.0,
) -> None:
    """Attention without softmax: S_t = exp(-slope) S_(t-1) + k_t v_t^T, out_t = scale q_t^T S_t.

    States are read and written as `causal_conv1d` says.

    Used by MiniMax's lightning attention (scale 1, its `slope_rate` a layer).

    Args:
        out_THV: [T, H, V]; any float dtype.
        query_TGK: [T, G, K]; head h of the values reads head h // (H / G). May be a strided view with a
            contiguous last dimension.
        key_TGK: Same.
        value_THV: [T, H, V].
        slope: [H], at least 0.
        state_cache: [N, H, K, V], best float32; may be strided in dimension 0.
        metadata: The rows, decode rows first.
        block_size: Tokens from one checkpoint to the next.
        scale: Factor of the queries.

    Raises:
        InvalidArgument: Shapes, dtypes or devices do not fit, or (CPU) a block id lies outside the cache.
    """
    LINEAR_ATTENTION.pick(value_THV.device, value_THV.dtype, key_TGK.shape[-1])(
        out_THV, query_TGK, key_TGK, value_THV, slope, state_cache, metadata, block_size, scale
    )
