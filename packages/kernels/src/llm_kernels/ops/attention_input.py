"""The op between input projection and attention: norms of heads, rotation, the write to the cache."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import torch

from llm_kernels.backends import by_row_backend, cpp_backend, torch_backend, triton_backends
from llm_kernels.reference import attention_input as reference
from llm_kernels.registry import PLAIN, Op

_RotateWriteKV: TypeAlias = Callable[..., None]
_VALUE_SIZE = frozenset({"value_size"})
_FP8_CACHE = frozenset({"fp8_cache"})

ROTATE_WRITE_KV: Op[_RotateWriteKV] = Op(
    "rotate_write_kv",
    [
        torch_backend(reference.rotate_write_kv),
        by_row_backend("rotate_write_kv"),
        cpp_backend("attention_input", "rotate_write_kv", features=_VALUE_SIZE, is_batch_invariant=True),
        *triton_backends(
            "attention_input",
            "rotate_write_kv",
            features=_VALUE_SIZE | _FP8_CACHE,
            is_batch_invariant=True,
        ),
    ],
)


def rotate_write_kv(
    query_THD: torch.Tensor,
    key_TKD: torch.Tensor,
    value_TKV: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    positions: torch.Tensor,
    slot_mapping: torch.Tensor,
    cos_sin_cache: torch.Tensor | None,
    *,
    query_weight: torch.Tensor | None = None,
    key_weight: torch.Tensor | None = None,
    eps: float | None = None,
    interleaved: bool = False,
    key_scale: torch.Tensor | None = None,
    value_scale: torch.Tensor | None = None,
) -> None:
    """Norm and rotate queries in place; norm and rotate keys and write them with the values to their slots.

    The same as `rms_norm` of each head, `rotary_embedding`, then `write_kv`, in one launch where the back end
    can. Whether the numbers are rounded between these steps is up to the back end.

    Args:
        query_THD: [T, H, D], overwritten; may be a strided view with a contiguous last dimension.
        key_TKD: [T, K, D]; same, but what it holds afterwards is not defined.
        value_TKV: [T, K, V]; strided as the others, left as it is.
        key_cache: [N, block_size, K, D], as in `write_kv`.
        value_cache: [N, block_size, K, V]; same.
        positions: int64 [T], each in [0, P).
        slot_mapping: int64 [T], as in `write_kv`: -1 writes nothing.
        cos_sin_cache: [P, rot], as in `rotary_embedding`; None: no rotation.
        query_weight: [D], factors of the normed queries; None: none.
        key_weight: [D], factors of the normed keys; None: none.
        eps: Added to the mean square of a head; None: there are no norms.
        interleaved: As in `rotary_embedding`.
        key_scale: As in `write_kv`.
        value_scale: Same; both or none.

    Raises:
        InvalidArgument: Shapes, dtypes or devices do not fit, weights come without `eps`, or (CPU) a slot
            lies outside the cache. On a GPU slots outside the cache are skipped.
    """
    head_size = key_TKD.shape[-1]
    features = PLAIN if value_TKV.shape[-1] == head_size else _VALUE_SIZE
    scales: tuple[torch.Tensor | None, ...] = ()
    if key_cache.dtype == torch.float8_e4m3fn or key_scale is not None or value_scale is not None:
        features |= _FP8_CACHE
        scales = (key_scale, value_scale)
    ROTATE_WRITE_KV.pick(query_THD.device, query_THD.dtype, head_size, features)(
        query_THD,
        key_TKD,
        value_TKV,
        key_cache,
        value_cache,
        positions,
        slot_mapping,
        cos_sin_cache,
        query_weight,
        key_weight,
        eps,
        interleaved,
        *scales,
    )
