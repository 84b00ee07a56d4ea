"""The state space scan of Mamba 2 in Triton: hands its tensors to the kernels of matrix recurrences."""

from __future__ import annotations

import torch

from llm_kernels.metadata import AttentionMetadata
from llm_kernels.state_checks import check_ssd_scan
from llm_kernels.triton.state_rows_launch import MatrixScan
from llm_kernels.triton.state_rows_matrix import STEP_SIZE


def ssd_scan(
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
    """Triton back end of `ops.ssd_scan`."""
    check_ssd_scan(
        out_THP, x_THP, dt_TH, A_H, B_TGS, C_TGS, D, dt_bias_H, dt_limit, state_cache, metadata, block_size
    )
    heads, head_size = x_THP.shape[1:]
    MatrixScan(
        out=out_THP,
        query=C_TGS,
        key=B_TGS,
        value=x_THP,
        decay=dt_TH,
        decay_kind=STEP_SIZE.value,
        state=state_cache.transpose(2, 3),
        metadata=metadata,
        block_size=block_size,
        rate=A_H.contiguous(),
        bias=None if dt_bias_H is None else dt_bias_H.contiguous(),
        dt_limit=dt_limit,
        skip=None if D is None else D.reshape(heads, -1).expand(heads, head_size),
    ).run()
