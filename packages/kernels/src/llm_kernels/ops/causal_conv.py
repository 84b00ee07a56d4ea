"""The causal depthwise convolution op over recurrent state, in front of most recurrent mixers."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import torch

from llm_kernels.backends import torch_backend, triton_backends
from llm_kernels.metadata import AttentionMetadata
from llm_kernels.reference import causal_conv as reference_causal_conv
from llm_kernels.registry import Op

_CausalConv: TypeAlias = Callable[
    [
        torch.Tensor,
        torch.Tensor,
        torch.Tensor,
        torch.Tensor | None,
        torch.Tensor,
        AttentionMetadata,
        int,
        str | None,
    ],
    None,
]

CAUSAL_CONV1D: Op[_CausalConv] = Op(
    "causal_conv1d",
    [torch_backend(reference_causal_conv.causal_conv1d), *triton_backends("causal_conv", "causal_conv1d")],
    default_size=4,
)


def causal_conv1d(
    out_TC: torch.Tensor,
    x_TC: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    state_cache: torch.Tensor,
    metadata: AttentionMetadata,
    *,
    block_size: int,
    activation: str | None = None,
) -> None:
    """Convolve each channel over W tokens: out_t = act(bias + sum_w weight_w x_(t - W + 1 + w)).

    The state of a row is its last W - 1 inputs, the oldest first. How rows read and write states is the same
    for all recurrent ops. Entry i of a row's block table holds the state after the last computed token of
    tokens i * block_size to (i + 1) * block_size - 1. A row over positions c to c + n - 1 goes on from entry
    (c - 1) // block_size, from zeros when c is 0, and writes the entry of its last token and the state at
    each border in between. Rows with 0 `context_lens` write no state, and their outputs are zeros. A step
    with `max_query_len` 1 and as many tokens as rows makes no decision on device values: it can be captured.

    Used by Mamba, Mamba 2, FalconMamba, Jamba, Zamba, Zamba2, Bamba, FalconH1, GraniteMoeHybrid, NemotronH,
    Qwen3-Next, Qwen3.5, Kimi Linear, OLMo hybrid, Bailing hybrid, GLM-5 next (all with silu), and
    RecurrentGemma, LFM2 (the short convolution, W 3) and Inkling (without activation). A `nn.Conv1d` weight
    [C, 1, W] goes in squeezed.

    Args:
        out_TC: [T, C], dtype of x. Tokens of no row are left as they are.
        x_TC: [T, C]; may be a strided view with a contiguous last dimension. Not the same memory as `out_TC`.
        weight: [C, W], W at least 2.
        bias: [C] or None.
        state_cache: [N, C, W - 1], any float dtype; may be strided in dimension 0.
        metadata: The rows, decode rows first. `slot_mapping` and `positions` are not read.
        block_size: Tokens from one checkpoint to the next.
        activation: "silu" or None.

    Raises:
        InvalidArgument: Shapes, dtypes or devices do not fit, or (CPU) a block id lies outside the cache.
    """
    CAUSAL_CONV1D.pick(x_TC.device, x_TC.dtype, weight.shape[-1])(
        out_TC, x_TC, weight, bias, state_cache, metadata, block_size, activation
    )
