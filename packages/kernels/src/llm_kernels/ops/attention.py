"""The attention op over a paged KV cache, for steps that mix prefill and decode rows."""

from __future__ import annotations

from functools import partial
from typing import Protocol

import torch

from llm_kernels.backends import by_row_backend, cpp_backend, cuda_backend, torch_backend, triton_backends
from llm_kernels.metadata import AttentionMetadata
from llm_kernels.reference import attention as reference_attention
from llm_kernels.registry import PLAIN, Op


class _PagedAttention(Protocol):
    def __call__(
        self,
        out_THV: torch.Tensor,
        query_THD: torch.Tensor,
        key_cache: torch.Tensor,
        value_cache: torch.Tensor,
        metadata: AttentionMetadata,
        scale: float,
        sliding_window: int | None,
        soft_cap: float | None,
        chunk: int | None,
        sinks: torch.Tensor | None,
        alibi_slopes: torch.Tensor | None,
        causal: bool,
        distance_bias: torch.Tensor | None = None,
        key_scale: torch.Tensor | None = None,
        value_scale: torch.Tensor | None = None,
        /,
    ) -> None: ...


_VALUE_SIZE = frozenset({"value_size"})
_ODD_VALUE_SIZE = frozenset({"value_size", "odd_size"})  # one of the two sizes is no multiple of 16
_CPP_FEATURES = _VALUE_SIZE | {"chunk", "sinks", "alibi", "all_keys"}
_TRITON_FEATURES = _CPP_FEATURES | _ODD_VALUE_SIZE | {"fp8_cache"}
_CUDA_FEATURES = frozenset({"chunk", "sinks", "all_keys", "fp8_cache"})
_CUDA_DTYPES = frozenset({torch.bfloat16, torch.float16})


def _cpp_head_size(_dtype: torch.dtype, head_size: int) -> bool:
    return head_size % 16 == 0 and head_size <= 512


def _cuda_head_size(_dtype: torch.dtype, head_size: int) -> bool:
    return head_size in (64, 80, 96, 128, 192, 256)


def _triton_head_size(_dtype: torch.dtype, head_size: int) -> bool:
    return 16 <= head_size <= 256


PAGED_ATTENTION: Op[_PagedAttention] = Op(
    "paged_attention",
    [
        torch_backend(reference_attention.paged_attention),
        by_row_backend("paged_attention"),
        cpp_backend(
            "invariant_attention", "paged_attention", _cpp_head_size, _CPP_FEATURES, is_for_invariance=True
        ),
        *triton_backends(
            "invariant_attention",
            "paged_attention",
            _triton_head_size,
            _TRITON_FEATURES - {"all_keys"},
            is_for_invariance=True,
        ),
        cpp_backend("attention", "paged_attention", _cpp_head_size, _CPP_FEATURES),
        cuda_backend("attention", "paged_attention", _cuda_head_size, _CUDA_FEATURES, _CUDA_DTYPES),
        *triton_backends("attention", "paged_attention", _triton_head_size, _TRITON_FEATURES),
    ],
)


def paged_attention(
    out_THV: torch.Tensor,
    query_THD: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    metadata: AttentionMetadata,
    *,
    scale: float,
    sliding_window: int | None = None,
    soft_cap: float | None = None,
    chunk: int | None = None,
    sinks: torch.Tensor | None = None,
    alibi_slopes: torch.Tensor | None = None,
    causal: bool = True,
    distance_bias: torch.Tensor | None = None,
    key_scale: torch.Tensor | None = None,
    value_scale: torch.Tensor | None = None,
) -> None:
    """Attention of each row's query tokens over its cached tokens, the step's own included.

    Query head h reads KV head h // (H / K). Of a row of C tokens, the q-th of the last Q, the query tokens,
    stands at position p = C - Q + q and sees the keys at or before it. Entries of a block table that lie
    wholly before the first key a row's queries see are not read.

    Args:
        out_THV: [T, H, V], dtype of the query. Tokens past `cu_query_lens[R]` are left as they are.
        query_THD: [T, H, D]; may be a strided view with a contiguous last dimension.
        key_cache: [N, block_size, K, D]; H a multiple of K; last dimension contiguous. Blocks may lie
            further apart than their size. A float dtype, or float8_e4m3fn.
        value_cache: [N, block_size, K, V]; same. V may differ from D.
        metadata: The rows, decode rows first.
        scale: Factor of the scores, mostly D ** -0.5.
        sliding_window: A query sees this many latest keys, its own included.
        soft_cap: Scores become soft_cap * tanh(score / soft_cap).
        chunk: A query at position p sees keys from (p // chunk) * chunk on.
        sinks: float [H]; a further score of each head, neither scaled nor capped, that enters the denominator
            of the softmax only.
        alibi_slopes: float32 [H]; the (capped) score of a key at k falls by slope * (p - k).
        causal: Without it each query sees all `context_lens` keys of its row (cross attention): the queries
            are not counted in them, and a window, a chunk, ALiBi or a bias by distance have no meaning.
        distance_bias: float32 [H, L]; added to the (capped) score of a key at k: that of the distance p - k,
            from L - 1 on the last one.
        key_scale: float32 [K], what the keys of a float8_e4m3fn cache are multiplied by; None: 1.
        value_scale: Same for the values; both or none.

    Raises:
        InvalidArgument: Shapes, dtypes or devices do not fit, or (CPU) a block id lies outside the cache.
    """
    head_size, value_size = query_THD.shape[-1], value_cache.shape[-1]
    features = PLAIN
    further: tuple[torch.Tensor | None, ...] = ()
    if chunk is not None or sinks is not None or alibi_slopes is not None or not causal:
        features = _features(chunk, sinks, alibi_slopes, causal)
    if value_size != head_size:
        features |= _ODD_VALUE_SIZE if head_size % 16 or value_size % 16 else _VALUE_SIZE
        head_size = max(head_size, value_size)
    if distance_bias is not None:  # Only back ends with the feature have the argument.
        features |= {"distance_bias"}
        further = (distance_bias,)
    if key_cache.dtype == torch.float8_e4m3fn or key_scale is not None or value_scale is not None:
        features |= {"fp8_cache"}
        further = (distance_bias, key_scale, value_scale)
    attend = partial(
        PAGED_ATTENTION.pick(query_THD.device, query_THD.dtype, head_size, features),
        out_THV,
        query_THD,
        key_cache,
        value_cache,
        metadata,
        scale,
        sliding_window,
        soft_cap,
        chunk,
        sinks,
        alibi_slopes,
        causal,
        *further,
    )
    if metadata.apart is None:
        attend()
    else:
        metadata.apart(attend)


def _features(
    chunk: int | None, sinks: torch.Tensor | None, alibi_slopes: torch.Tensor | None, causal: bool
) -> frozenset[str]:
    """What a call makes use of beyond the plain op."""
    used = {
        "chunk": chunk is not None,
        "sinks": sinks is not None,
        "alibi": alibi_slopes is not None,
        "all_keys": not causal,
    }
    return frozenset(name for name, is_used in used.items() if is_used)
