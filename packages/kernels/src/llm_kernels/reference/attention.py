"""Attention over a paged cache in torch, float32 inside; the meaning of `paged_attention`."""

from __future__ import annotations

import torch

from llm_kernels.checks import check_attention
from llm_kernels.errors import InvalidArgument
from llm_kernels.metadata import AttentionMetadata


def paged_attention(
    out_THD: torch.Tensor,
    query_THD: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    metadata: AttentionMetadata,
    scale: float,
    sliding_window: int | None,
    soft_cap: float | None,
) -> None:
    """Reference of `ops.paged_attention`. Reads the lengths on the host, so it waits for the device."""
    check_attention(out_THD, query_THD, key_cache, value_cache, metadata, sliding_window, soft_cap)
    starts = metadata.cu_query_lens.tolist()
    for row, context in enumerate(metadata.context_lens.tolist()):
        begin, end = starts[row], starts[row + 1]
        if begin == end:
            continue
        if context == 0:
            out_THD[begin:end] = 0
            continue
        key_CKD, value_CKD = (
            _gather(cache, metadata.block_tables[row], context) for cache in (key_cache, value_cache)
        )
        out_THD[begin:end] = attend(
            query_THD[begin:end], key_CKD, value_CKD, scale, sliding_window, soft_cap
        ).to(out_THD.dtype)


def attend(
    query_QHD: torch.Tensor,
    key_CKD: torch.Tensor,
    value_CKD: torch.Tensor,
    scale: float,
    sliding_window: int | None = None,
    soft_cap: float | None = None,
) -> torch.Tensor:
    """Causal attention of the last Q of C tokens; float32 [Q, H, D]."""
    num_queries, num_heads, head_size = query_QHD.shape
    context, num_kv_heads = key_CKD.shape[:2]
    if context < num_queries:
        raise InvalidArgument(
            "context_lens", f"{context} tokens are fewer than the row's {num_queries} queries"
        )
    query_KGQD = query_QHD.float().reshape(num_queries, num_kv_heads, -1, head_size).permute(1, 2, 0, 3)
    key_K1CD = key_CKD.float().transpose(0, 1).unsqueeze(1)
    value_K1CD = value_CKD.float().transpose(0, 1).unsqueeze(1)
    scores_KGQC = query_KGQD @ key_K1CD.transpose(-1, -2) * scale
    if soft_cap is not None:
        scores_KGQC = soft_cap * torch.tanh(scores_KGQC / soft_cap)
    query_pos = torch.arange(context - num_queries, context, device=query_QHD.device).unsqueeze(1)
    key_pos = torch.arange(context, device=query_QHD.device)
    masked = key_pos > query_pos
    if sliding_window is not None:
        masked = masked | (key_pos <= query_pos - sliding_window)
    weights_KGQC = scores_KGQC.masked_fill(masked, float("-inf")).softmax(dim=-1)
    out_KGQD = weights_KGQC @ value_K1CD
    return out_KGQD.permute(2, 0, 1, 3).reshape(num_queries, num_heads, head_size)


def _gather(cache: torch.Tensor, block_table: torch.Tensor, context: int) -> torch.Tensor:
    """The first `context` tokens of a row, [C, K, D]."""
    num_blocks, block_size = cache.shape[:2]
    needed = -(-context // block_size)
    blocks = block_table[:needed].long()
    if blocks.numel() < needed:
        raise InvalidArgument("block_tables", f"a row of {context} tokens needs {needed} blocks")
    if blocks.device.type == "cpu" and bool(((blocks < 0) | (blocks >= num_blocks)).any()):
        raise InvalidArgument("block_tables", f"block ids must lie in [0, {num_blocks})")
    return cache[blocks].flatten(0, 1)[:context]
