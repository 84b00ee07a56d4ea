"""The rotary position embedding op."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import torch

from llm_kernels.backends import cpp_backend, torch_backend, triton_backends
from llm_kernels.reference import rope as reference_rope
from llm_kernels.registry import Op

_Rope: TypeAlias = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, bool], None]

ROTARY_EMBEDDING: Op[_Rope] = Op(
    "rotary_embedding",
    [
        torch_backend(reference_rope.rotary_embedding, is_batch_invariant=True),
        cpp_backend("rope", "rotary_embedding", is_batch_invariant=True),
        *triton_backends("rope", "rotary_embedding", is_batch_invariant=True),
    ],
)


def rotary_embedding(
    query_THD: torch.Tensor,
    key_TKD: torch.Tensor,
    positions: torch.Tensor,
    cos_sin_cache: torch.Tensor,
    *,
    interleaved: bool = False,
) -> None:
    """Rotate queries and keys in place by their positions; dimensions past the first `rot` stay.

    Args:
        query_THD: [T, H, D]; may be a strided view with a contiguous last dimension.
        key_TKD: [T, K, D]; same.
        positions: int64 [T], each in [0, P).
        cos_sin_cache: [P, rot], the cosines of the rot / 2 frequencies, then their sines; float32 is best.
        interleaved: False: dimension i turns with i + rot / 2 (Hugging Face's layout); True: 2i with 2i + 1.
    """
    ROTARY_EMBEDDING.pick(query_THD.device, query_THD.dtype, query_THD.shape[-1])(
        query_THD, key_TKD, positions, cos_sin_cache, interleaved
    )
