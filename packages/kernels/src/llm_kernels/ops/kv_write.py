"""The op that writes a step's keys and values into the paged cache."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import torch

from llm_kernels.backends import cpp_backend, torch_backend, triton_backends
from llm_kernels.reference import kv_write as reference_kv_write
from llm_kernels.registry import Op

_WriteKV: TypeAlias = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor], None]

WRITE_KV: Op[_WriteKV] = Op(
    "write_kv",
    [
        torch_backend(reference_kv_write.write_kv),
        cpp_backend("kv_write", "write_kv"),
        *triton_backends("kv_write", "write_kv"),
    ],
)


def write_kv(
    key_TKD: torch.Tensor,
    value_TKD: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
) -> None:
    """Write the KV of T tokens to their slots; a slot of -1 writes nothing.

    Args:
        key_TKD: [T, K, D]; may be a strided view with a contiguous last dimension.
        value_TKD: [T, K, D]; same.
        key_cache: [N, block_size, K, D], float32, bfloat16 or float16; last dimension contiguous.
        value_cache: Same.
        slot_mapping: int64 [T], block * block_size + offset, distinct where not -1.

    Raises:
        InvalidArgument: Shapes, dtypes or devices do not fit, or (CPU) a slot lies outside the cache; nothing
            is written then. On a GPU slots outside the cache are skipped.
    """
    WRITE_KV.pick(key_TKD.device, key_TKD.dtype, key_TKD.shape[-1])(
        key_TKD, value_TKD, key_cache, value_cache, slot_mapping
    )
