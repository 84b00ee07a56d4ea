"""The gated delta rule op, the recurrence of delta networks."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import torch

from llm_kernels.backends import torch_backend, triton_backends
from llm_kernels.metadata import AttentionMetadata
from llm_kernels.reference import delta_rule as reference_delta_rule
from llm_kernels.registry import Op

_DeltaRule: TypeAlias = Callable[
    [
        torch.Tensor,
        torch.Tensor,
        torch.Tensor,
        torch.Tensor,
        torch.Tensor,
        torch.Tensor,
        torch.Tensor,
        AttentionMetadata,
        int,
        float,
        bool,
    ],
    None,
]

GATED_DELTA_RULE: Op[_DeltaRule] = Op(
    "gated_delta_rule",
    [
        torch_backend(reference_delta_rule.gated_delta_rule),
        *triton_backends("delta_rule", "gated_delta_rule", lambda _dtype, size: size <= 256),
    ],
)


def gated_delta_rule(
    out_THV: torch.Tensor,
    query_TGK: torch.Tensor,
    key_TGK: torch.Tensor,
    value_THV: torch.Tensor,
    decay: torch.Tensor,
    beta_TH: torch.Tensor,
    state_cache: torch.Tensor,
    metadata: AttentionMetadata,
    *,
    block_size: int,
    scale: float,
    l2_norm: bool = True,
) -> None:
    """S = exp(g_t) S_(t-1); S_t = S + k_t (beta_t (v_t - k_t^T S))^T; out_t = scale q_t^T S_t.

    States are read and written as `causal_conv1d` says. The model makes beta (a sigmoid, doubled by OLMo
    hybrid) and g (mostly -exp(A_log) softplus(a + dt_bias)) of its projections.

    Used by Qwen3-Next, Qwen3.5, OLMo hybrid (one g a head), and Kimi Linear, Bailing hybrid, GLM-5 next (one
    g a key dimension).

    Args:
        out_THV: [T, H, V]; any float dtype.
        query_TGK: [T, G, K]; head h of the values reads head h // (H / G). May be a strided view with a
            contiguous last dimension.
        key_TGK: Same.
        value_THV: [T, H, V].
        decay: g, log decays, at most 0: [T, H], or [T, H, K] for one a key dimension; best float32.
        beta_TH: [T, H].
        state_cache: [N, H, K, V], best float32; may be strided in dimension 0.
        metadata: The rows, decode rows first.
        block_size: Tokens from one checkpoint to the next.
        scale: Factor of the queries, mostly K ** -0.5.
        l2_norm: Queries and keys become x / sqrt(x^T x + 1e-6) first.

    Raises:
        InvalidArgument: Shapes, dtypes or devices do not fit, or (CPU) a block id lies outside the cache.
    """
    GATED_DELTA_RULE.pick(value_THV.device, value_THV.dtype, key_TGK.shape[-1])(
        out_THV,
        query_TGK,
        key_TGK,
        value_THV,
        decay,
        beta_TH,
        state_cache,
        metadata,
        block_size,
        scale,
        l2_norm,
    )
