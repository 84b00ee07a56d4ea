"""Checks of the arguments of the recurrent ops: rows, state cache, packed tokens; reads no device memory."""

from __future__ import annotations

import torch

from llm_kernels.checks import check_dtype, check_shape
from llm_kernels.errors import InvalidArgument
from llm_kernels.metadata import AttentionMetadata


def check_state_rows(
    state_cache: torch.Tensor,
    state_shape: tuple[int, ...],
    metadata: AttentionMetadata,
    block_size: int,
    device: torch.device,
) -> None:
    """Checks the cache [N, *state_shape], the tables of the rows and the block size."""
    expected = (state_cache.shape[0] if state_cache.ndim else 0, *state_shape)
    check_shape("state_cache", state_cache, expected, device)
    if not state_cache.is_floating_point():
        raise InvalidArgument("state_cache", f"expected floating point, got {state_cache.dtype}")
    num_rows = metadata.context_lens.numel()
    check_shape("cu_query_lens", metadata.cu_query_lens, (num_rows + 1,), device)
    if metadata.block_tables.ndim != 2:
        found = list(metadata.block_tables.shape)
        raise InvalidArgument("block_tables", f"expected [R, max_blocks], got {found}")
    check_shape("block_tables", metadata.block_tables, (num_rows, metadata.block_tables.shape[1]), device)
    for field in ("cu_query_lens", "context_lens", "block_tables"):
        check_dtype(field, getattr(metadata, field), torch.int32)
    if not 0 <= metadata.num_decodes <= num_rows:
        raise InvalidArgument("num_decodes", f"expected 0..{num_rows}, got {metadata.num_decodes}")
    if block_size < 1:
        raise InvalidArgument("block_size", f"expected at least 1, got {block_size}")


def check_packed(
    field: str,
    x: torch.Tensor,
    shape: tuple[int, ...],
    device: torch.device,
    dtype: torch.dtype | None = None,
) -> None:
    """Checks packed tokens or a weight: shape, device, floating point, and the dtype where one is named."""
    check_shape(field, x, shape, device)
    if not x.is_floating_point():
        raise InvalidArgument(field, f"expected floating point, got {x.dtype}")
    if dtype is not None:
        check_dtype(field, x, dtype)


def check_heads(field: str, num_heads: int, num_groups: int) -> None:
    """Raises `InvalidArgument` unless the heads are a multiple of the groups."""
    if num_groups == 0 or num_heads % num_groups != 0:
        raise InvalidArgument(field, f"{num_heads} heads are no multiple of {num_groups} groups")


def check_causal_conv(
    out_TC: torch.Tensor,
    x_TC: torch.Tensor,
    weight_CW: torch.Tensor,
    bias_C: torch.Tensor | None,
    state_cache: torch.Tensor,
    metadata: AttentionMetadata,
    block_size: int,
    activation: str | None,
) -> None:
    """Checks the arguments of `causal_conv1d`."""
    device = x_TC.device
    if x_TC.ndim != 2:
        raise InvalidArgument("x_TC", f"expected [T, C], got {list(x_TC.shape)}")
    channels = x_TC.shape[1]
    check_packed("out_TC", out_TC, tuple(x_TC.shape), device, x_TC.dtype)
    if weight_CW.ndim != 2 or weight_CW.shape[1] < 2:
        raise InvalidArgument("weight", f"expected [C, W] with W of 2 or more, got {list(weight_CW.shape)}")
    width = weight_CW.shape[1]
    check_packed("weight", weight_CW, (channels, width), device)
    if bias_C is not None:
        check_packed("bias", bias_C, (channels,), device)
    if activation not in (None, "silu"):
        raise InvalidArgument("activation", f"expected None or 'silu', got {activation!r}")
    check_state_rows(state_cache, (channels, width - 1), metadata, block_size, device)


def check_selective_scan(
    out_TI: torch.Tensor,
    x_TI: torch.Tensor,
    dt_TI: torch.Tensor,
    A_IS: torch.Tensor,
    B_TGS: torch.Tensor,
    C_TGS: torch.Tensor,
    D_I: torch.Tensor | None,
    dt_bias_I: torch.Tensor | None,
    state_cache: torch.Tensor,
    metadata: AttentionMetadata,
    block_size: int,
) -> None:
    """Checks the arguments of `selective_scan`; B and C already as [T, G, S]."""
    device = x_TI.device
    if x_TI.ndim != 2:
        raise InvalidArgument("x_TI", f"expected [T, I], got {list(x_TI.shape)}")
    num_tokens, size = x_TI.shape
    check_packed("out_TI", out_TI, (num_tokens, size), device, x_TI.dtype)
    check_packed("dt_TI", dt_TI, (num_tokens, size), device)
    if A_IS.ndim != 2:
        raise InvalidArgument("A", f"expected [I, S], got {list(A_IS.shape)}")
    states = A_IS.shape[1]
    check_packed("A", A_IS, (size, states), device)
    if B_TGS.ndim != 3:
        raise InvalidArgument("B_TGS", f"expected [T, S] or [T, G, S], got {list(B_TGS.shape)}")
    groups = B_TGS.shape[1]
    check_packed("B_TGS", B_TGS, (num_tokens, groups, states), device)
    check_packed("C_TGS", C_TGS, (num_tokens, groups, states), device)
    check_heads("x_TI", size, groups)
    for field, x in (("D", D_I), ("dt_bias", dt_bias_I)):
        if x is not None:
            check_packed(field, x, (size,), device)
    check_state_rows(state_cache, (size, states), metadata, block_size, device)


def check_ssd_scan(
    out_THP: torch.Tensor,
    x_THP: torch.Tensor,
    dt_TH: torch.Tensor,
    A_H: torch.Tensor,
    B_TGS: torch.Tensor,
    C_TGS: torch.Tensor,
    D: torch.Tensor | None,
    dt_bias_H: torch.Tensor | None,
    dt_limit: tuple[float, float],
    state_cache: torch.Tensor,
    metadata: AttentionMetadata,
    block_size: int,
) -> None:
    """Checks the arguments of `ssd_scan`."""
    device = x_THP.device
    if x_THP.ndim != 3:
        raise InvalidArgument("x_THP", f"expected [T, H, P], got {list(x_THP.shape)}")
    num_tokens, heads, head_size = x_THP.shape
    check_packed("out_THP", out_THP, tuple(x_THP.shape), device, x_THP.dtype)
    check_packed("dt_TH", dt_TH, (num_tokens, heads), device)
    check_packed("A", A_H, (heads,), device)
    if B_TGS.ndim != 3:
        raise InvalidArgument("B_TGS", f"expected [T, G, S], got {list(B_TGS.shape)}")
    groups, states = B_TGS.shape[1:]
    check_packed("B_TGS", B_TGS, (num_tokens, groups, states), device)
    check_packed("C_TGS", C_TGS, (num_tokens, groups, states), device)
    check_heads("x_THP", heads, groups)
    if D is not None:
        check_packed("D", D, (heads, head_size) if D.ndim == 2 else (heads,), device)
    if dt_bias_H is not None:
        check_packed("dt_bias", dt_bias_H, (heads,), device)
    if len(dt_limit) != 2 or not dt_limit[0] <= dt_limit[1]:
        raise InvalidArgument("dt_limit", f"expected (least, most), got {dt_limit}")
    check_state_rows(state_cache, (heads, head_size, states), metadata, block_size, device)


def check_delta_rule(
    out_THV: torch.Tensor,
    query_TGK: torch.Tensor,
    key_TGK: torch.Tensor,
    value_THV: torch.Tensor,
    decay: torch.Tensor,
    beta_TH: torch.Tensor,
    state_cache: torch.Tensor,
    metadata: AttentionMetadata,
    block_size: int,
) -> None:
    """Checks the arguments of `gated_delta_rule`."""
    _check_query_key_value(out_THV, query_TGK, key_TGK, value_THV)
    num_tokens, heads, value_size = value_THV.shape
    device, key_size = value_THV.device, key_TGK.shape[-1]
    shape = (num_tokens, heads, key_size) if decay.ndim == 3 else (num_tokens, heads)
    check_packed("decay", decay, shape, device)
    check_packed("beta_TH", beta_TH, (num_tokens, heads), device)
    check_state_rows(state_cache, (heads, key_size, value_size), metadata, block_size, device)


def check_linear_attention(
    out_THV: torch.Tensor,
    query_TGK: torch.Tensor,
    key_TGK: torch.Tensor,
    value_THV: torch.Tensor,
    slope_H: torch.Tensor,
    state_cache: torch.Tensor,
    metadata: AttentionMetadata,
    block_size: int,
) -> None:
    """Checks the arguments of `linear_attention`."""
    _check_query_key_value(out_THV, query_TGK, key_TGK, value_THV)
    _, heads, value_size = value_THV.shape
    check_packed("slope", slope_H, (heads,), value_THV.device)
    state = (heads, key_TGK.shape[-1], value_size)
    check_state_rows(state_cache, state, metadata, block_size, value_THV.device)


def _check_query_key_value(
    out_THV: torch.Tensor, query_TGK: torch.Tensor, key_TGK: torch.Tensor, value_THV: torch.Tensor
) -> None:
    if value_THV.ndim != 3:
        raise InvalidArgument("value_THV", f"expected [T, H, V], got {list(value_THV.shape)}")
    if key_TGK.ndim != 3:
        raise InvalidArgument("key_TGK", f"expected [T, G, K], got {list(key_TGK.shape)}")
    num_tokens, heads, _ = value_THV.shape
    device = value_THV.device
    check_packed("out_THV", out_THV, tuple(value_THV.shape), device)
    check_packed("key_TGK", key_TGK, (num_tokens, *key_TGK.shape[1:]), device)
    check_packed("query_TGK", query_TGK, tuple(key_TGK.shape), device)
    check_heads("value_THV", heads, key_TGK.shape[1])


def check_rg_lru(
    out_TI: torch.Tensor,
    x_TI: torch.Tensor,
    input_gate_TI: torch.Tensor,
    recurrent_gate_TI: torch.Tensor,
    a_param_I: torch.Tensor,
    state_cache: torch.Tensor,
    metadata: AttentionMetadata,
    block_size: int,
) -> None:
    """Checks the arguments of `rg_lru`."""
    device = x_TI.device
    if x_TI.ndim != 2:
        raise InvalidArgument("x_TI", f"expected [T, I], got {list(x_TI.shape)}")
    size = x_TI.shape[1]
    check_packed("out_TI", out_TI, tuple(x_TI.shape), device, x_TI.dtype)
    for field, x in (("input_gate_TI", input_gate_TI), ("recurrent_gate_TI", recurrent_gate_TI)):
        check_packed(field, x, tuple(x_TI.shape), device)
    check_packed("a_param", a_param_I, (size,), device)
    check_state_rows(state_cache, (size,), metadata, block_size, device)
