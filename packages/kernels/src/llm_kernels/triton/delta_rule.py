"""The gated delta rule in Triton: hands its tensors to the kernels of matrix recurrences."""

from __future__ import annotations

import torch

from llm_kernels.metadata import AttentionMetadata
from llm_kernels.state_checks import check_delta_rule
from llm_kernels.triton.state_rows_launch import MatrixScan
from llm_kernels.triton.state_rows_matrix import HEAD_DECAY, KEY_DECAY


def gated_delta_rule(
    out_THV: torch.Tensor,
    query_TGK: torch.Tensor,
    key_TGK: torch.Tensor,
    value_THV: torch.Tensor,
    decay: torch.Tensor,
    beta_TH: torch.Tensor,
    state_cache: torch.Tensor,
    metadata: AttentionMetadata,
    block_size: int,
    scale: float,
    l2_norm: bool,
) -> None:
    """Triton back end of `ops.gated_delta_rule`. Decays a key dimension go token by token, prompts too."""
    check_delta_rule(
        out_THV, query_TGK, key_TGK, value_THV, decay, beta_TH, state_cache, metadata, block_size
    )
    MatrixScan(
        out=out_THV,
        query=query_TGK,
        key=key_TGK,
        value=value_THV,
        decay=decay,
        decay_kind=(KEY_DECAY if decay.ndim == 3 else HEAD_DECAY).value,
        state=state_cache,
        metadata=metadata,
        block_size=block_size,
        scale=scale,
        beta=beta_TH,
        l2_norm=l2_norm,
    ).run()
