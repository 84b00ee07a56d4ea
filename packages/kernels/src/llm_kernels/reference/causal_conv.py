"""Causal depthwise convolution in torch, float32 inside; the meaning of `causal_conv1d`."""

from __future__ import annotations

import torch

from llm_kernels.metadata import AttentionMetadata
from llm_kernels.reference.state_rows import Tokens, run_state_rows
from llm_kernels.state_checks import check_causal_conv

_MAX_SPAN = 512


def causal_conv1d(
    out_TC: torch.Tensor,
    x_TC: torch.Tensor,
    weight_CW: torch.Tensor,
    bias_C: torch.Tensor | None,
    state_cache: torch.Tensor,
    metadata: AttentionMetadata,
    block_size: int,
    activation: str | None,
) -> None:
    """Reference of `ops.causal_conv1d`."""
    check_causal_conv(out_TC, x_TC, weight_CW, bias_C, state_cache, metadata, block_size, activation)
    weight_WC = weight_CW.float().t().contiguous()
    bias = None if bias_C is None else bias_C.float()

    def finish(out: torch.Tensor) -> torch.Tensor:
        if bias is not None:
            out += bias
        return torch.nn.functional.silu(out, inplace=True) if activation == "silu" else out

    def step(
        tokens: Tokens, state_RCW: torch.Tensor, _fresh: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        seen_RCW = torch.cat((state_RCW, x_TC[tokens].float().unsqueeze(2)), dim=2)
        return finish((seen_RCW * weight_CW.float()).sum(dim=2)), seen_RCW[:, :, 1:]

    def scan(tokens: slice, state_CW: torch.Tensor, _fresh: bool) -> tuple[torch.Tensor, torch.Tensor]:
        seen_NC = torch.cat((state_CW.t(), x_TC[tokens].float()))
        length = tokens.stop - tokens.start
        out_NC = seen_NC[:length] * weight_WC[0]
        for tap in range(1, weight_WC.shape[0]):
            out_NC.addcmul_(seen_NC[tap : tap + length], weight_WC[tap])
        return finish(out_NC), seen_NC[length:].t()

    run_state_rows(out_TC, state_cache, metadata, block_size, step, scan, _MAX_SPAN)
