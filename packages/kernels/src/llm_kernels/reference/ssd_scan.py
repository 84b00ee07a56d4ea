"""The state space scan of Mamba 2 in torch, float32 inside; the meaning of `ssd_scan`."""

from __future__ import annotations

import torch
from torch.nn.functional import softplus

from llm_kernels.metadata import AttentionMetadata
from llm_kernels.reference.state_rows import Tokens, run_state_rows
from llm_kernels.reference.state_rows_chunked import decayed_scan
from llm_kernels.state_checks import check_ssd_scan

_MAX_SPAN = 256


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
    """Reference of `ops.ssd_scan`."""
    check_ssd_scan(
        out_THP, x_THP, dt_TH, A_H, B_TGS, C_TGS, D, dt_bias_H, dt_limit, state_cache, metadata, block_size
    )
    A_H = A_H.float()
    skip = None if D is None else D.float().view(A_H.numel(), -1)
    groups, states = B_TGS.shape[1:]

    def discretise(tokens: Tokens) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Inputs x and dt * x [N, H, P], log decays [N, H]."""
        x_NHP, dt_NH = x_THP[tokens].float(), dt_TH[tokens].float()
        dt_NH = softplus(dt_NH if dt_bias_H is None else dt_NH + dt_bias_H.float()).clamp(*dt_limit)
        return x_NHP, x_NHP * dt_NH.unsqueeze(2), dt_NH * A_H

    def add_skip(out: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return out if skip is None else out.addcmul_(x, skip)

    def step(
        tokens: Tokens, state_RHPS: torch.Tensor, _fresh: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        x_RHP, fed_RHP, log_decay_RH = discretise(tokens)
        rows, heads, head_size = x_RHP.shape
        state_RHPS *= log_decay_RH.exp_()[:, :, None, None]
        state_RGUS = state_RHPS.view(rows * groups, -1, states)
        B_RG1S, C_RGS1 = B_TGS[tokens].float(), C_TGS[tokens].float()
        state_RGUS.addcmul_(fed_RHP.view(rows * groups, -1, 1), B_RG1S.reshape(rows * groups, 1, states))
        out = state_RGUS @ C_RGS1.reshape(rows * groups, states, 1)
        return add_skip(out.view(rows, heads, head_size), x_RHP), state_RHPS

    def scan(tokens: slice, state_HPS: torch.Tensor, _fresh: bool) -> tuple[torch.Tensor, torch.Tensor]:
        x_NHP, fed_NHP, log_decay_NH = discretise(tokens)
        out_NHP, state_HSP = decayed_scan(
            C_TGS[tokens].float(),
            B_TGS[tokens].float(),
            fed_NHP,
            log_decay_NH,
            state_HPS.transpose(1, 2).contiguous(),
        )
        return add_skip(out_NHP, x_NHP), state_HSP.transpose(1, 2)

    run_state_rows(out_THP, state_cache, metadata, block_size, step, scan, _MAX_SPAN)
