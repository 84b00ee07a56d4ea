"""Checks of an op's arguments for the back ends written in Python; the C++ bindings make the same ones."""

from __future__ import annotations

import torch

from llm_kernels.errors import InvalidArgument
from llm_kernels.metadata import AttentionMetadata


def check_shape(field: str, x: torch.Tensor, shape: tuple[int, ...], device: torch.device) -> None:
    """Raises `InvalidArgument` unless `x` has the shape and lies on the device."""
    if x.shape != shape:
        raise InvalidArgument(field, f"expected shape {list(shape)}, got {list(x.shape)}")
    if x.device != device:
        raise InvalidArgument(field, f"expected a tensor on {device}, got {x.device}")


def check_dtype(field: str, x: torch.Tensor, dtype: torch.dtype) -> None:
    """Raises `InvalidArgument` unless `x` has the dtype."""
    if x.dtype != dtype:
        raise InvalidArgument(field, f"expected {dtype}, got {x.dtype}")


def check_attention(
    out_THD: torch.Tensor,
    query_THD: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    metadata: AttentionMetadata,
    sliding_window: int | None,
    soft_cap: float | None,
) -> None:
    """Checks all that can be known without reading device memory."""
    device = query_THD.device
    if query_THD.ndim != 3:
        raise InvalidArgument("query_THD", f"expected [T, H, D], got {list(query_THD.shape)}")
    num_tokens, num_heads, head_size = query_THD.shape
    check_shape("out_THD", out_THD, (num_tokens, num_heads, head_size), device)
    check_dtype("out_THD", out_THD, query_THD.dtype)
    if key_cache.ndim != 4 or key_cache.shape[-1] != head_size or key_cache.device != device:
        found = f"{list(key_cache.shape)} on {key_cache.device}"
        raise InvalidArgument(
            "key_cache", f"expected [N, block_size, K, {head_size}] on {device}, got {found}"
        )
    check_shape("value_cache", value_cache, tuple(key_cache.shape), device)
    check_dtype("value_cache", value_cache, key_cache.dtype)
    num_kv_heads = key_cache.shape[2]
    if num_kv_heads == 0 or num_heads % num_kv_heads != 0:
        raise InvalidArgument("query_THD", f"{num_heads} heads are no multiple of {num_kv_heads} KV heads")
    num_rows = metadata.context_lens.numel()
    check_shape("cu_query_lens", metadata.cu_query_lens, (num_rows + 1,), device)
    if metadata.block_tables.ndim != 2:
        raise InvalidArgument(
            "block_tables", f"expected [R, max_blocks], got {list(metadata.block_tables.shape)}"
        )
    check_shape("block_tables", metadata.block_tables, (num_rows, metadata.block_tables.shape[1]), device)
    for field in ("cu_query_lens", "context_lens", "block_tables"):
        check_dtype(field, getattr(metadata, field), torch.int32)
    if not 0 <= metadata.num_decodes <= num_rows:
        raise InvalidArgument("num_decodes", f"expected 0..{num_rows}, got {metadata.num_decodes}")
    if sliding_window is not None and sliding_window < 1:
        raise InvalidArgument("sliding_window", f"expected at least 1, got {sliding_window}")
    if soft_cap is not None and not soft_cap > 0:
        raise InvalidArgument("soft_cap", f"expected more than 0, got {soft_cap}")


def check_write_kv(
    key_TKD: torch.Tensor,
    value_TKD: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
) -> None:
    """Checks all but the values of the slots."""
    device = key_TKD.device
    if key_TKD.ndim != 3:
        raise InvalidArgument("key_TKD", f"expected [T, K, D], got {list(key_TKD.shape)}")
    num_tokens, num_kv_heads, head_size = key_TKD.shape
    check_shape("value_TKD", value_TKD, (num_tokens, num_kv_heads, head_size), device)
    check_dtype("value_TKD", value_TKD, key_TKD.dtype)
    if key_cache.ndim != 4:
        raise InvalidArgument("key_cache", f"expected [N, block_size, K, D], got {list(key_cache.shape)}")
    check_shape("key_cache", key_cache, (*key_cache.shape[:2], num_kv_heads, head_size), device)
    check_shape("value_cache", value_cache, tuple(key_cache.shape), device)
    check_dtype("value_cache", value_cache, key_cache.dtype)
    check_shape("slot_mapping", slot_mapping, (num_tokens,), device)
    check_dtype("slot_mapping", slot_mapping, torch.int64)


def check_norm(
    x_field: str, x: torch.Tensor, other_field: str, other: torch.Tensor, weight: torch.Tensor
) -> None:
    """Checks the tensors of a norm: `other` is its output or its residual."""
    if x.ndim not in (2, 3):
        raise InvalidArgument(x_field, f"expected [T, E] or [T, H, D], got {list(x.shape)}")
    check_shape(other_field, other, tuple(x.shape), x.device)
    check_dtype(other_field, other, x.dtype)
    check_shape("weight", weight, (x.shape[-1],), x.device)


def check_rope(
    query_THD: torch.Tensor, key_TKD: torch.Tensor, positions: torch.Tensor, cos_sin_cache: torch.Tensor
) -> None:
    """Checks all but the values of the positions."""
    device = query_THD.device
    for field, x in (("query_THD", query_THD), ("key_TKD", key_TKD)):
        if x.ndim != 3 or x.shape[0] != positions.numel() or x.device != device:
            raise InvalidArgument(field, f"expected [{positions.numel()}, heads, D], got {list(x.shape)}")
        check_dtype(field, x, query_THD.dtype)
    check_shape("positions", positions, (query_THD.shape[0],), device)
    check_dtype("positions", positions, torch.int64)
    rot = cos_sin_cache.shape[-1]
    widest = min(query_THD.shape[-1], key_TKD.shape[-1])
    if cos_sin_cache.ndim != 2 or rot % 2 != 0 or rot > widest or cos_sin_cache.device != device:
        found = f"{list(cos_sin_cache.shape)} on {cos_sin_cache.device}"
        raise InvalidArgument(
            "cos_sin_cache", f"expected [P, even and at most {widest}] on {device}, got {found}"
        )


def check_gated(out: torch.Tensor, gate_up: torch.Tensor) -> None:
    """Checks the tensors of a gated activation."""
    if out.ndim != 2:
        raise InvalidArgument("out", f"expected [T, I], got {list(out.shape)}")
    check_shape("gate_up", gate_up, (out.shape[0], 2 * out.shape[1]), out.device)
    check_dtype("gate_up", gate_up, out.dtype)


def check_inner_contiguous(**tensors: torch.Tensor) -> None:
    """Raises `InvalidArgument` where a last dimension is not contiguous; the keyword is the field."""
    for field, x in tensors.items():
        if x.stride(-1) != 1 and x.shape[-1] > 1:
            raise InvalidArgument(field, "the last dimension must be contiguous")
