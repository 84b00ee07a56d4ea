"""The selective scan of Mamba 1 in torch, float32 inside; the meaning of `selective_scan`."""

from __future__ import annotations

import torch
from torch.nn.functional import softplus

from llm_kernels.metadata import AttentionMetadata
from llm_kernels.reference.state_rows import Tokens, run_state_rows
from llm_kernels.state_checks import check_selective_scan

# Tokens whose decays and inputs are laid out at once: small enough to stay in the cache of a core.
_MAX_SPAN = 16


def selective_scan(
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
    """Reference of `ops.selective_scan`.

    The decays differ by channel and state, so that no product of matrices stands for the recurrence: runs lay
    out decays and inputs for all their tokens at once, and one fused multiply-add a token is left.
    """
    check_selective_scan(
        out_TI, x_TI, dt_TI, A_IS, B_TGS, C_TGS, D_I, dt_bias_I, state_cache, metadata, block_size
    )
    groups, states = B_TGS.shape[1:]
    A_IS = A_IS.float()
    dt_bias = None if dt_bias_I is None else dt_bias_I.float()

    def discretise(tokens: Tokens) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Inputs [N, I], decays and what goes in [N, I, S]."""
        x_NI, dt_NI = x_TI[tokens].float(), dt_TI[tokens].float()
        dt_NI = softplus(dt_NI if dt_bias is None else dt_NI + dt_bias)
        decay_NIS = (dt_NI.unsqueeze(2) * A_IS).exp_()
        fed_NGI1 = (dt_NI * x_NI).view(x_NI.shape[0], groups, -1, 1)
        fed_NIS = (fed_NGI1 * B_TGS[tokens].float().unsqueeze(2)).view_as(decay_NIS)
        return x_NI, decay_NIS, fed_NIS

    def read(tokens: Tokens, x_NI: torch.Tensor, state_NIS: torch.Tensor) -> torch.Tensor:
        state_NGIS = state_NIS.view(x_NI.shape[0], groups, -1, states)
        out_NI = (state_NGIS @ C_TGS[tokens].float().unsqueeze(3)).view_as(x_NI)
        return out_NI if D_I is None else out_NI.addcmul_(x_NI, D_I.float())

    def step(
        tokens: Tokens, state_RIS: torch.Tensor, _fresh: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        x_RI, decay_RIS, fed_RIS = discretise(tokens)
        state_RIS = fed_RIS.addcmul_(decay_RIS, state_RIS)
        return read(tokens, x_RI, state_RIS), state_RIS

    def scan(tokens: slice, state_IS: torch.Tensor, _fresh: bool) -> tuple[torch.Tensor, torch.Tensor]:
        x_NI, decay_NIS, fed_NIS = discretise(tokens)
        for decay_IS, fed_IS in zip(decay_NIS.unbind(), fed_NIS.unbind(), strict=True):
            state_IS = fed_IS.addcmul_(decay_IS, state_IS)
        return read(tokens, x_NI, fed_NIS), state_IS

    run_state_rows(out_TI, state_cache, metadata, block_size, step, scan, _MAX_SPAN)
