"""Linear attention in Triton: hands its tensors to the kernels of matrix recurrences."""

from __future__ import annotations

import torch

from llm_kernels.metadata import AttentionMetadata
from llm_kernels.state_checks import check_linear_attention
from llm_kernels.triton.state_rows_launch import MatrixScan
from llm_kernels.triton.state_rows_matrix import SLOPE


def linear_attention(
    out_THV: torch.Tensor,
    query_TGK: torch.Tensor,
    key_TGK: torch.Tensor,
    value_THV: torch.Tensor,
    slope_H: torch.Tensor,
    state_cache: torch.Tensor,
    metadata: AttentionMetadata,
    block_size: int,
    scale: float,
) -> None:
    """Triton back end of `ops.linear_attention`."""
    check_linear_attention(out_THV, query_TGK, key_TGK, value_THV, slope_H, state_cache, metadata, block_size)
    MatrixScan(
        out=out_THV,
        query=query_TGK,
        key=key_TGK,
        value=value_THV,
        decay=slope_H.contiguous(),
        decay_kind=SLOPE.value,
        state=state_cache,
        metadata=metadata,
        block_size=block_size,
        scale=scale,
    ).run()
