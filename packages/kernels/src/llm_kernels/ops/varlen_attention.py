"""The attention op over packed rows without a cache, for encoders and pooling."""

from __future__ import annotations

from typing import Protocol

import torch

from llm_kernels.backends import sdpa_backend, torch_backend, triton_backends
from llm_kernels.packed_rows import Bias
from llm_kernels.reference import varlen_attention as reference_varlen_attention
from llm_kernels.registry import PLAIN, Op


class _VarlenAttention(Protocol):
    def __call__(
        self,
        out_THV: torch.Tensor,
        query_THD: torch.Tensor,
        key_SKD: torch.Tensor,
        value_SKV: torch.Tensor,
        cu_query_lens: torch.Tensor,
        cu_key_lens: torch.Tensor,
        max_query_len: int,
        max_key_len: int,
        scale: float,
        causal: bool,
        sliding_window: int | None,
        soft_cap: float | None,
        alibi_slopes: torch.Tensor | None,
        bias: Bias | None,
        /,
    ) -> None: ...


VARLEN_ATTENTION: Op[_VarlenAttention] = Op(
    "varlen_attention",
    [
        torch_backend(reference_varlen_attention.varlen_attention),
        sdpa_backend("varlen_attention", "varlen_attention", frozenset({"alibi", "bias"})),
        *triton_backends(
            "attention",
            "varlen_attention",
            lambda _dtype, head_size: 16 <= head_size <= 256,
            frozenset({"soft_cap", "alibi"}),
        ),
    ],
)


def varlen_attention(
    out_THV: torch.Tensor,
    query_THD: torch.Tensor,
    key_SKD: torch.Tensor,
    value_SKV: torch.Tensor,
    cu_query_lens: torch.Tensor,
    cu_key_lens: torch.Tensor,
    max_query_len: int,
    max_key_len: int,
    *,
    scale: float,
    causal: bool,
    sliding_window: int | None = None,
    soft_cap: float | None = None,
    alibi_slopes: torch.Tensor | None = None,
    bias: Bias | None = None,
) -> None:
    """Attention of packed rows: query tokens of a row over the keys of the same row.

    Of a row of Q queries and C keys, query q stands at position p = C - Q + q among the keys. A query that
    sees no key yields zeros.

    Args:
        out_THV: [T, H, V], dtype of the query. Tokens past `cu_query_lens[R]` are left as they are.
        query_THD: [T, H, D]; may be a strided view with a contiguous last dimension.
        key_SKD: [S, K, D], dtype of the query; H a multiple of K; same.
        value_SKV: [S, K, V]; same.
        cu_query_lens: int32 [R + 1], prefix sums of the query tokens of each row; the first is 0.
        cu_key_lens: int32 [R + 1], same of the keys.
        max_query_len: Upper bound of the query tokens of a row.
        max_key_len: Upper bound of the keys of a row.
        scale: Factor of the scores, mostly D ** -0.5.
        causal: A query sees the keys at or before its position only.
        sliding_window: A query sees keys less than this far from its position; to both sides if not causal.
        soft_cap: Scores become soft_cap * tanh(score / soft_cap).
        alibi_slopes: float32 [H]; the (capped) score of a key at k falls by slope * |p - k|.
        bias: Added to the (capped) scores: float [H, max_query_len, max_key_len] or wider, of which a row
            takes its first queries and keys, or a callable that gives [H, Q, C] for a row's Q and C.

    Raises:
        InvalidArgument: Shapes, dtypes, devices or lengths do not fit.
    """
    features = PLAIN
    if soft_cap is not None or alibi_slopes is not None or bias is not None:
        used = {"soft_cap": soft_cap, "alibi": alibi_slopes, "bias": bias}
        features = frozenset(name for name, value in used.items() if value is not None)
    size = max(query_THD.shape[-1], value_SKV.shape[-1])
    VARLEN_ATTENTION.pick(query_THD.device, query_THD.dtype, size, features)(
        out_THV,
        query_THD,
        key_SKD,
        value_SKV,
        cu_query_lens,
        cu_key_lens,
        max_query_len,
        max_key_len,
        scale,
        causal,
        sliding_window,
        soft_cap,
        alibi_slopes,
        bias,
    )
