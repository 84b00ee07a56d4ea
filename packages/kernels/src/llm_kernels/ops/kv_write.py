"""The ops that write a step's keys and values, or latents, into the paged cache."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import torch

from llm_kernels.backends import cpp_backend, torch_backend, triton_backends
from llm_kernels.reference import kv_write as reference_kv_write
from llm_kernels.registry import PLAIN, Op

_WriteKV: TypeAlias = Callable[..., None]
_WriteLatent: TypeAlias = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], None]
_VALUE_SIZE = frozenset({"value_size"})
_FP8_CACHE = frozenset({"fp8_cache"})

WRITE_KV: Op[_WriteKV] = Op(
    "write_kv",
    [
        torch_backend(reference_kv_write.write_kv, is_batch_invariant=True),
        cpp_backend("kv_write", "write_kv", features=_VALUE_SIZE, is_batch_invariant=True),
        *triton_backends("kv_write", "write_kv", features=_VALUE_SIZE | _FP8_CACHE, is_batch_invariant=True),
    ],
)

WRITE_LATENT: Op[_WriteLatent] = Op(
    "write_latent",
    [
        torch_backend(reference_kv_write.write_latent, is_batch_invariant=True),
        cpp_backend("kv_write", "write_latent", is_batch_invariant=True),
        *triton_backends("kv_write", "write_latent", is_batch_invariant=True),
    ],
    default_size=576,
)


def write_kv(
    key_TKD: torch.Tensor,
    value_TKV: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
    *,
    key_scale: torch.Tensor | None = None,
    value_scale: torch.Tensor | None = None,
) -> None:
    """Write the KV of T tokens to their slots; a slot of -1 writes nothing.

    Args:
        key_TKD: [T, K, D]; may be a strided view with a contiguous last dimension.
        value_TKV: [T, K, V]; same. V may differ from D.
        key_cache: [N, block_size, K, D], float32, bfloat16, float16 or float8_e4m3fn; last dimension
            contiguous. Blocks may lie further apart than their size.
        value_cache: [N, block_size, K, V]; same.
        slot_mapping: int64 [T], block * block_size + offset, distinct where not -1.
        key_scale: float32 [K], what keys are divided by on their way to a float8_e4m3fn cache, whose range
            they are clamped to; None: 1.
        value_scale: Same for the values; both or none.

    Raises:
        InvalidArgument: Shapes, dtypes or devices do not fit, or (CPU) a slot lies outside the cache; nothing
            is written then. On a GPU slots outside the cache are skipped.
    """
    head_size = key_TKD.shape[-1]
    features = PLAIN if value_TKV.shape[-1] == head_size else _VALUE_SIZE
    scales: tuple[torch.Tensor | None, ...] = ()
    if key_cache.dtype == torch.float8_e4m3fn or key_scale is not None or value_scale is not None:
        features |= _FP8_CACHE
        scales = (key_scale, value_scale)
    WRITE_KV.pick(key_TKD.device, key_TKD.dtype, head_size, features)(
        key_TKD, value_TKV, key_cache, value_cache, slot_mapping, *scales
    )


def write_latent(latent_TL: torch.Tensor, latent_cache: torch.Tensor, slot_mapping: torch.Tensor) -> None:
    """Write the latents of T tokens to their slots; a slot of -1 writes nothing.

    Args:
        latent_TL: [T, L]; may be a strided view with a contiguous last dimension.
        latent_cache: [N, block_size, L], float32, bfloat16 or float16; last dimension contiguous. Blocks may
            lie further apart than their size.
        slot_mapping: int64 [T], block * block_size + offset, distinct where not -1.

    Raises:
        InvalidArgument: As `write_kv`.
    """
    WRITE_LATENT.pick(latent_TL.device, latent_TL.dtype, latent_TL.shape[-1])(
        latent_TL, latent_cache, slot_mapping
    )
