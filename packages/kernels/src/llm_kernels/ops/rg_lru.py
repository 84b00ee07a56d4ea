"""The real-gated linear recurrent unit op of RecurrentGemma."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import torch

from llm_kernels.backends import torch_backend, triton_backends
from llm_kernels.metadata import AttentionMetadata
from llm_kernels.reference import rg_lru as reference_rg_lru
from llm_kernels.registry import Op

_RgLru: TypeAlias = Callable[
    [
        torch.Tensor,
        torch.Tensor,
        torch.Tensor,
        torch.Tensor,
        torch.Tensor,
        torch.Tensor,
        AttentionMetadata,
        int,
    ],
    None,
]

RG_LRU: Op[_RgLru] = Op(
    "rg_lru",
    [torch_backend(reference_rg_lru.rg_lru), *triton_backends("rg_lru", "rg_lru")],
    default_size=2560,
)


def rg_lru(
    out_TI: torch.Tensor,
    x_TI: torch.Tensor,
    input_gate_TI: torch.Tensor,
    recurrent_gate_TI: torch.Tensor,
    a_param: torch.Tensor,
    state_cache: torch.Tensor,
    metadata: AttentionMetadata,
    *,
    block_size: int,
) -> None:
    """h_t = a_t h_(t-1) + sqrt(1 - a_t^2) sigmoid(input_gate_t) x_t; out_t = h_t.

    a_t = exp(-8 sigmoid(recurrent_gate_t) softplus(a_param)). The token at position 0 goes in without the
    square root. States are read and written as `causal_conv1d` says.

    Used by RecurrentGemma (Griffin).

    Args:
        out_TI: [T, I], dtype of x.
        x_TI: [T, I], after the convolution.
        input_gate_TI: [T, I], before the sigmoid: what the block-diagonal linear layer yields, with its bias.
        recurrent_gate_TI: Same.
        a_param: [I], the checkpoint's `recurrent_param`.
        state_cache: [N, I], best float32; may be strided in dimension 0.
        metadata: The rows, decode rows first.
        block_size: Tokens from one checkpoint to the next.

    Raises:
        InvalidArgument: Shapes, dtypes or devices do not fit, or (CPU) a block id lies outside the cache.
    """
    RG_LRU.pick(x_TI.device, x_TI.dtype, x_TI.shape[-1])(
        out_TI, x_TI, input_gate_TI, recurrent_gate_TI, a_param, state_cache, metadata, block_size
    )
