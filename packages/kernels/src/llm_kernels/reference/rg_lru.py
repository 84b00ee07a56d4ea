"""The real-gated linear recurrent unit in torch, float32 inside; the meaning of `rg_lru`."""

from __future__ import annotations

import torch
from torch.nn.functional import softplus

from llm_kernels.metadata import AttentionMetadata
from llm_kernels.reference.state_rows import Tokens, run_state_rows
from llm_kernels.state_checks import check_rg_lru

_MAX_SPAN = 512
# The unit's constant c: decays are sigmoid(a_param) ** (c * recurrent gate).
_SHARPNESS = 8.0


def rg_lru(
    out_TI: torch.Tensor,
    x_TI: torch.Tensor,
    input_gate_TI: torch.Tensor,
    recurrent_gate_TI: torch.Tensor,
    a_param_I: torch.Tensor,
    state_cache: torch.Tensor,
    metadata: AttentionMetadata,
    block_size: int,
) -> None:
    """Reference of `ops.rg_lru`."""
    check_rg_lru(out_TI, x_TI, input_gate_TI, recurrent_gate_TI, a_param_I, state_cache, metadata, block_size)
    rate_I = -_SHARPNESS * softplus(a_param_I.float())

    def gate(tokens: Tokens, fresh: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
        """Decays and gated inputs [N, I]; the first token of a sequence (`fresh` [N]) goes in unscaled."""
        log_decay_NI = torch.sigmoid(recurrent_gate_TI[tokens].float()) * rate_I
        size_NI = (-torch.expm1(2 * log_decay_NI)).sqrt_()
        if fresh is not None:
            size_NI.masked_fill_(fresh.unsqueeze(1), 1)
        fed_NI = torch.sigmoid(input_gate_TI[tokens].float()).mul_(x_TI[tokens].float()).mul_(size_NI)
        return log_decay_NI.exp_(), fed_NI

    def step(
        tokens: Tokens, state_RI: torch.Tensor, fresh: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        decay_RI, fed_RI = gate(tokens, fresh)
        state_RI = fed_RI.addcmul_(decay_RI, state_RI)
        return state_RI, state_RI

    def scan(tokens: slice, state_I: torch.Tensor, fresh: bool) -> tuple[torch.Tensor, torch.Tensor]:
        first = None
        if fresh:
            first = torch.zeros(tokens.stop - tokens.start, dtype=torch.bool, device=x_TI.device)
            first[0] = True
        decay_NI, fed_NI = gate(tokens, first)
        for decay_I, fed_I in zip(decay_NI.unbind(), fed_NI.unbind(), strict=True):
            state_I = fed_I.addcmul_(decay_I, state_I)
        return fed_NI, state_I

    run_state_rows(out_TI, state_cache, metadata, block_size, step, scan, _MAX_SPAN)
