"""The attention op over a paged cache of latents (MLA, its projections absorbed in query and output)."""

from __future__ import annotations

from functools import partial
from typing import Protocol

import torch

from llm_kernels.backends import by_row_backend, torch_backend, triton_backends
from llm_kernels.metadata import AttentionMetadata
from llm_kernels.reference import latent_attention as reference_latent_attention
from llm_kernels.registry import Op


class _LatentAttention(Protocol):
    def __call__(
        self,
        out_THR: torch.Tensor,
        query_THL: torch.Tensor,
        latent_cache: torch.Tensor,
        metadata: AttentionMetadata,
        scale: float,
        value_size: int,
        /,
    ) -> None: ...


LATENT_ATTENTION: Op[_LatentAttention] = Op(
    "latent_attention",
    [
        torch_backend(reference_latent_attention.latent_attention),
        by_row_backend("latent_attention"),
        *triton_backends("latent_attention", "latent_attention", lambda _dtype, size: size <= 512),
        *triton_backends(
            "invariant_latent_attention",
            "latent_attention",
            lambda _dtype, size: size <= 512,
            is_for_invariance=True,
        ),
    ],
    default_size=512,
)


def latent_attention(
    out_THR: torch.Tensor,
    query_THL: torch.Tensor,
    latent_cache: torch.Tensor,
    metadata: AttentionMetadata,
    *,
    scale: float,
    value_size: int,
) -> None:
    """Causal attention in which all heads share one cached vector a token: the key whole, the value its head.

    Rows and positions are those of `paged_attention`.

    Args:
        out_THR: [T, H, R], dtype of the query. Tokens past `cu_query_lens[R]` are left as they are.
        query_THL: [T, H, L], each head's query in the latent's space, its rope part last; may be a strided
            view with a contiguous last dimension.
        latent_cache: [N, block_size, L], the compressed latent followed by the rope key; last dimension
            contiguous. Blocks may lie further apart than their size.
        metadata: The rows, decode rows first.
        scale: Factor of the scores: that of the model's own head size, not of L.
        value_size: R, the part of the latent that is the value.

    Raises:
        InvalidArgument: Shapes, dtypes or devices do not fit, or (CPU) a block id lies outside the cache.
    """
    # Tiles are made of the value and of the rest, the rope part, which counts double: its tile comes on top.
    size = max(value_size, 2 * (query_THL.shape[-1] - value_size))
    attend = partial(
        LATENT_ATTENTION.pick(query_THL.device, query_THL.dtype, size),
        out_THR,
        query_THL,
        latent_cache,
        metadata,
        scale,
        value_size,
    )
    if metadata.apart is None:
        attend()
    else:
        metadata.apart(attend)
