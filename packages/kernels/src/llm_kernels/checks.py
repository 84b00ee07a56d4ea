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
    out_THV: torch.Tensor,
    query_THD: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    metadata: AttentionMetadata,
) -> None:
    """Checks the tensors, as far as can be known without reading device memory."""
    device = query_THD.device
    if query_THD.ndim != 3:
        raise InvalidArgument("query_THD", f"expected [T, H, D], got {list(query_THD.shape)}")
    num_tokens, num_heads, head_size = query_THD.shape
    if key_cache.ndim != 4 or key_cache.shape[-1] != head_size or key_cache.device != device:
        found = f"{list(key_cache.shape)} on {key_cache.device}"
        raise InvalidArgument(
            "key_cache", f"expected [N, block_size, K, {head_size}] on {device}, got {found}"
        )
    value_size = value_cache.shape[-1] if value_cache.ndim == 4 else head_size
    check_shape("value_cache", value_cache, (*key_cache.shape[:3], value_size), device)
    check_dtype("value_cache", value_cache, key_cache.dtype)
    check_shape("out_THV", out_THV, (num_tokens, num_heads, value_size), device)
    check_dtype("out_THV", out_THV, query_THD.dtype)
    num_kv_heads = key_cache.shape[2]
    if num_kv_heads == 0 or num_heads % num_kv_heads != 0:
        raise InvalidArgument("query_THD", f"{num_heads} heads are no multiple of {num_kv_heads} KV heads")
    check_rows(metadata, device)


def check_rows(metadata: AttentionMetadata, device: torch.device) -> None:
    """Checks the rows of a step but their values."""
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


def check_shared_prefix(metadata: AttentionMetadata, device: torch.device) -> None:
    """Checks the tensors of a step's shared prefixes but their values; None is right."""
    shared = metadata.shared_prefix
    if shared is None:
        return
    num_groups = shared.group_lens.numel()
    shapes = {
        "prefix_lens": (metadata.num_decodes,),
        "member_rows": (metadata.num_decodes,),
        "cu_members": (num_groups + 1,),
        "group_lens": (num_groups,),
    }
    for field, shape in shapes.items():
        check_shape(field, getattr(shared, field), shape, device)
        check_dtype(field, getattr(shared, field), torch.int32)
        check_inner_contiguous(**{field: getattr(shared, field)})


def check_cache_scales(
    key_cache: torch.Tensor, key_scale: torch.Tensor | None, value_scale: torch.Tensor | None
) -> None:
    """Checks the scales of a cache in e4m3, of which there are both or none; other caches have none."""
    if (key_scale is None) != (value_scale is None):
        raise InvalidArgument("value_scale", "expected with key_scale, and only with it")
    for field, scale in (("key_scale", key_scale), ("value_scale", value_scale)):
        if scale is not None:
            check_dtype("key_cache", key_cache, torch.float8_e4m3fn)
            check_shape(field, scale, (key_cache.shape[2],), key_cache.device)
            check_dtype(field, scale, torch.float32)
            check_inner_contiguous(**{field: scale})


def check_scoring(
    query_THD: torch.Tensor,
    sliding_window: int | None,
    soft_cap: float | None,
    chunk: int | None = None,
    sinks: torch.Tensor | None = None,
    alibi_slopes: torch.Tensor | None = None,
    causal: bool = True,
    distance_bias: torch.Tensor | None = None,
) -> None:
    """Checks how scores come about; all None (and causal) is always right."""
    if sliding_window is not None and sliding_window < 1:
        raise InvalidArgument("sliding_window", f"expected at least 1, got {sliding_window}")
    if soft_cap is not None and not soft_cap > 0:
        raise InvalidArgument("soft_cap", f"expected more than 0, got {soft_cap}")
    if chunk is not None and chunk < 1:
        raise InvalidArgument("chunk", f"expected at least 1, got {chunk}")
    if sinks is not None:
        check_shape("sinks", sinks, (query_THD.shape[1],), query_THD.device)
        if not sinks.is_floating_point():
            raise InvalidArgument("sinks", f"expected a float dtype, got {sinks.dtype}")
    if alibi_slopes is not None:
        check_shape("alibi_slopes", alibi_slopes, (query_THD.shape[1],), query_THD.device)
        check_dtype("alibi_slopes", alibi_slopes, torch.float32)
    if distance_bias is not None:
        width = distance_bias.shape[-1] if distance_bias.ndim == 2 else 0
        if width == 0:
            raise InvalidArgument("distance_bias", f"expected [H, L], got {list(distance_bias.shape)}")
        check_shape("distance_bias", distance_bias, (query_THD.shape[1], width), query_THD.device)
        check_dtype("distance_bias", distance_bias, torch.float32)
    by_position = (sliding_window, chunk, alibi_slopes, distance_bias)
    if not causal and any(option is not None for option in by_position):
        reason = "without it queries have no position among the keys: no window, chunk, ALiBi or bias"
        raise InvalidArgument("causal", reason)


def check_latent_attention(
    out_THR: torch.Tensor,
    query_THL: torch.Tensor,
    latent_cache: torch.Tensor,
    metadata: AttentionMetadata,
    value_size: int,
) -> None:
    """Checks the tensors, as far as can be known without reading device memory."""
    device = query_THL.device
    if query_THL.ndim != 3:
        raise InvalidArgument("query_THL", f"expected [T, H, L], got {list(query_THL.shape)}")
    num_tokens, num_heads, size = query_THL.shape
    if latent_cache.ndim != 3:
        raise InvalidArgument("latent_cache", f"expected [N, block_size, L], got {list(latent_cache.shape)}")
    check_shape("latent_cache", latent_cache, (*latent_cache.shape[:2], size), device)
    if not 1 <= value_size <= size:
        raise InvalidArgument("value_size", f"expected 1..{size}, got {value_size}")
    check_shape("out_THR", out_THR, (num_tokens, num_heads, value_size), device)
    check_dtype("out_THR", out_THR, query_THL.dtype)
    check_rows(metadata, device)


def check_varlen(
    out_THV: torch.Tensor,
    query_THD: torch.Tensor,
    key_SKD: torch.Tensor,
    value_SKV: torch.Tensor,
    cu_query_lens: torch.Tensor,
    cu_key_lens: torch.Tensor,
) -> None:
    """Checks the packed tensors but the values of the lengths."""
    device = query_THD.device
    for field, x in (("query_THD", query_THD), ("key_SKD", key_SKD), ("value_SKV", value_SKV)):
        if x.ndim != 3:
            raise InvalidArgument(field, f"expected three dimensions, got {list(x.shape)}")
    num_tokens, num_heads, head_size = query_THD.shape
    num_keys, num_kv_heads, value_size = value_SKV.shape
    check_shape("key_SKD", key_SKD, (num_keys, num_kv_heads, head_size), device)
    check_shape("value_SKV", value_SKV, (num_keys, num_kv_heads, value_size), device)
    check_shape("out_THV", out_THV, (num_tokens, num_heads, value_size), device)
    for field, x in (("key_SKD", key_SKD), ("value_SKV", value_SKV), ("out_THV", out_THV)):
        check_dtype(field, x, query_THD.dtype)
    if num_kv_heads == 0 or num_heads % num_kv_heads != 0:
        raise InvalidArgument("query_THD", f"{num_heads} heads are no multiple of {num_kv_heads} KV heads")
    check_shape("cu_query_lens", cu_query_lens, (cu_query_lens.numel(),), device)
    check_shape("cu_key_lens", cu_key_lens, (cu_query_lens.numel(),), device)
    check_dtype("cu_query_lens", cu_query_lens, torch.int32)
    check_dtype("cu_key_lens", cu_key_lens, torch.int32)


def check_write_kv(
    key_TKD: torch.Tensor,
    value_TKV: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
) -> None:
    """Checks all but the values of the slots."""
    device = key_TKD.device
    if key_TKD.ndim != 3:
        raise InvalidArgument("key_TKD", f"expected [T, K, D], got {list(key_TKD.shape)}")
    num_tokens, num_kv_heads, head_size = key_TKD.shape
    value_size = value_TKV.shape[-1] if value_TKV.ndim == 3 else head_size
    check_shape("value_TKV", value_TKV, (num_tokens, num_kv_heads, value_size), device)
    check_dtype("value_TKV", value_TKV, key_TKD.dtype)
    if key_cache.ndim != 4:
        raise InvalidArgument("key_cache", f"expected [N, block_size, K, D], got {list(key_cache.shape)}")
    check_shape("key_cache", key_cache, (*key_cache.shape[:2], num_kv_heads, head_size), device)
    check_shape("value_cache", value_cache, (*key_cache.shape[:3], value_size), device)
    check_dtype("value_cache", value_cache, key_cache.dtype)
    check_slots(slot_mapping, num_tokens, device)


def check_write_latent(
    latent_TL: torch.Tensor, latent_cache: torch.Tensor, slot_mapping: torch.Tensor
) -> None:
    """Checks all but the values of the slots."""
    if latent_TL.ndim != 2:
        raise InvalidArgument("latent_TL", f"expected [T, L], got {list(latent_TL.shape)}")
    if latent_cache.ndim != 3:
        raise InvalidArgument("latent_cache", f"expected [N, block_size, L], got {list(latent_cache.shape)}")
    shape = (*latent_cache.shape[:2], latent_TL.shape[1])
    check_shape("latent_cache", latent_cache, shape, latent_TL.device)
    check_slots(slot_mapping, latent_TL.shape[0], latent_TL.device)


def check_slots(slot_mapping: torch.Tensor, num_tokens: int, device: torch.device) -> None:
    """Checks the slots of a step's tokens but their values."""
    check_shape("slot_mapping", slot_mapping, (num_tokens,), device)
    check_dtype("slot_mapping", slot_mapping, torch.int64)


def check_norm(
    x_field: str, x: torch.Tensor, other_field: str, other: torch.Tensor, weight: torch.Tensor | None
) -> None:
    """Checks the tensors of a norm: `other` is its output or its residual."""
    if x.ndim not in (2, 3):
        raise InvalidArgument(x_field, f"expected [T, E] or [T, H, D], got {list(x.shape)}")
    check_shape(other_field, other, tuple(x.shape), x.device)
    check_dtype(other_field, other, x.dtype)
    if weight is not None:
        check_norm_factor("weight", x, weight)


def check_norm_factor(field: str, x: torch.Tensor, factor: torch.Tensor) -> None:
    """Checks a weight or bias: of the last dimension, or of the last two where `x` has heads."""
    wanted = tuple(x.shape[1:] if factor.ndim == 2 and x.ndim == 3 else x.shape[-1:])
    check_shape(field, factor, wanted, x.device)


def check_layer_norm(
    x_field: str,
    x: torch.Tensor,
    other_field: str,
    other: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
) -> None:
    """Checks the tensors of a layer norm: `other` is its output or its residual."""
    check_norm(x_field, x, other_field, other, weight)
    if bias is not None:
        check_norm_factor("bias", x, bias)


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


def check_activation(out: torch.Tensor, x: torch.Tensor, kind: str, parameters: torch.Tensor | None) -> None:
    """Checks the tensors of a plain activation, and that `parameters` are there when the kind has some."""
    if out.ndim != 2:
        raise InvalidArgument("out", f"expected [T, I], got {list(out.shape)}")
    check_shape("x", x, tuple(out.shape), out.device)
    check_dtype("x", x, out.dtype)
    if (kind == "xielu") != (parameters is not None):
        raise InvalidArgument("parameters", f"go with the kind xielu and no other, got the kind {kind!r}")
    if parameters is not None:
        check_shape("parameters", parameters, (3,), out.device)


def check_gate_options(kind: str, limit: float | None, alpha: float | None) -> None:
    """Checks the options of a gated activation beside the name of the kind."""
    if kind == "xielu":
        raise InvalidArgument("kind", "xielu is not for gates")
    if limit is not None and not limit > 0:
        raise InvalidArgument("limit", f"expected more than 0, got {limit}")
    if alpha is not None and kind != "silu":
        raise InvalidArgument("alpha", f"goes with the kind silu, got {kind!r}")


def check_grouped_linear(
    out_PO: torch.Tensor,
    x_PI: torch.Tensor,
    weight_NOI: torch.Tensor,
    expert_ids: torch.Tensor,
    bias_NO: torch.Tensor | None,
) -> None:
    """Checks all but the values of the ids."""
    device = x_PI.device
    if x_PI.ndim != 2:
        raise InvalidArgument("x_PI", f"expected [P, I], got {list(x_PI.shape)}")
    num_rows, in_size = x_PI.shape
    if weight_NOI.ndim != 3:
        raise InvalidArgument("weight_NOI", f"expected [N, O, I], got {list(weight_NOI.shape)}")
    num_experts, out_size = weight_NOI.shape[:2]
    check_shape("weight_NOI", weight_NOI, (num_experts, out_size, in_size), device)
    check_dtype("weight_NOI", weight_NOI, x_PI.dtype)
    check_shape("out_PO", out_PO, (num_rows, out_size), device)
    check_dtype("out_PO", out_PO, x_PI.dtype)
    check_shape("expert_ids", expert_ids, (num_rows,), device)
    check_dtype("expert_ids", expert_ids, torch.int64)
    if bias_NO is not None:
        check_shape("bias_NO", bias_NO, (num_experts, out_size), device)
