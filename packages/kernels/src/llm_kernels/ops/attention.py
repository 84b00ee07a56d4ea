"""The attention op over a paged KV cache, for steps that mix prefill and decode rows."""

from __future__ import annotations

from typing import Protocol

import torch

from llm_kernels.backends import cpp_backend, torch_backend, triton_backends
from llm_kernels.metadata import AttentionMetadata
from llm_kernels.reference import attention as reference_attention
from llm_kernels.registry import Op


class _PagedAttention(Protocol):
    def __call__(
        self,
        out_THD: torch.Tensor,
        query_THD: torch.Tensor,
        key_cache: torch.Tensor,
        value_cache: torch.Tensor,
        metadata: AttentionMetadata,
        scale: float,
        sliding_window: int | None,
        soft_cap: float | None,
        /,
    ) -> None: ...


def _triton_head_size(_dtype: torch.dtype, head_size: int) -> bool:
    return 16 <= head_size <= 256


PAGED_ATTENTION: Op[_PagedAttention] = Op(
    "paged_attention",
    [
        torch_backend(reference_attention.paged_attention),
        cpp_backend(
            "attention", "paged_attention", lambda _dtype, head_size: head_size % 16 == 0 and head_size <= 512
        ),
        *triton_backends("attention", "paged_attention", _triton_head_size),
    ],
)


def paged_attention(
    out_THD: torch.Tensor,
    query_THD: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    metadata: AttentionMetadata,
    *,
    scale: float,
    sliding_window: int | None = None,
    soft_cap: float | None = None,
) -> None:
    """Causal attention of each row's query tokens over its cached tokens, the step's own included.

    Query head h reads KV head h // (H / K). Of a row of C tokens, the q-th of the last Q, the query tokens,
    stands at position C - Q + q and sees the keys at or before it.

    Args:
        out_THD: [T, H, D], dtype of the query. Tokens past `cu_query_lens[R]` are left as they are.
        query_THD: [T, H, D]; may be a strided view with a contiguous last dimension.
        key_cache: [N, block_size, K, D]; H a multiple of K; last dimension contiguous.
        value_cache: Same.
        metadata: The rows, decode rows first.
        scale: Factor of the scores, mostly D ** -0.5.
        sliding_window: A query sees this many latest keys, its own included.
        soft_cap: Scores become soft_cap * tanh(score / soft_cap).

    Raises:
        InvalidArgument: Shapes, dtypes or devices do not fit, or (CPU) a block id lies outside the cache.
    """
    PAGED_ATTENTION.pick(query_THD.device, query_THD.dtype, query_THD.shape[-1])(
        out_THD, query_THD, key_cache, value_cache, metadata, scale, sliding_window, soft_cap
    )
