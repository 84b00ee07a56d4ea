"""The list of all ops, and what the outside may ask of it: which back ends there are, which one is chosen."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from llm_kernels.errors import UnknownOp
from llm_kernels.ops.activation import ACTIVATION, GATED_ACTIVATION
from llm_kernels.ops.attention import PAGED_ATTENTION
from llm_kernels.ops.attention_input import ROTATE_WRITE_KV
from llm_kernels.ops.causal_conv import CAUSAL_CONV1D
from llm_kernels.ops.decode_inputs import PREPARE_DECODE, STORE_TOKENS
from llm_kernels.ops.delta_rule import GATED_DELTA_RULE
from llm_kernels.ops.experts import GROUPED_LINEAR, MOE
from llm_kernels.ops.fp8_linear import FP8_LINEAR, FP8_PRODUCT
from llm_kernels.ops.gated_linear import GATED_LINEAR
from llm_kernels.ops.head_linear import HEAD_LINEAR
from llm_kernels.ops.kv_write import WRITE_KV, WRITE_LATENT
from llm_kernels.ops.latent_attention import LATENT_ATTENTION
from llm_kernels.ops.linear import LINEAR
from llm_kernels.ops.linear_attention import LINEAR_ATTENTION
from llm_kernels.ops.norm import FUSED_ADD_LAYER_NORM, FUSED_ADD_RMS_NORM, LAYER_NORM, RMS_NORM
from llm_kernels.ops.quantize_fp8 import GATED_ACTIVATION_FP8, QUANTIZE_FP8, RMS_NORM_FP8
from llm_kernels.ops.rg_lru import RG_LRU
from llm_kernels.ops.rope import ROTARY_EMBEDDING
from llm_kernels.ops.routing import ROUTE_EXPERTS
from llm_kernels.ops.sampling import DRAW_TOKENS, FILTER_THRESHOLDS, TOKEN_RANKS
from llm_kernels.ops.selective_scan import SELECTIVE_SCAN
from llm_kernels.ops.ssd_scan import SSD_SCAN
from llm_kernels.ops.varlen_attention import VARLEN_ATTENTION
from llm_kernels.registry import BackendStatus, Op

OPS: dict[str, Op[Callable[..., Any]]] = {
    op.name: op
    for op in (
        PAGED_ATTENTION,
        WRITE_KV,
        ROTATE_WRITE_KV,
        LATENT_ATTENTION,
        WRITE_LATENT,
        VARLEN_ATTENTION,
        RMS_NORM,
        FUSED_ADD_RMS_NORM,
        LAYER_NORM,
        FUSED_ADD_LAYER_NORM,
        ROTARY_EMBEDDING,
        ACTIVATION,
        GATED_ACTIVATION,
        LINEAR,
        FP8_LINEAR,
        FP8_PRODUCT,
        QUANTIZE_FP8,
        RMS_NORM_FP8,
        GATED_ACTIVATION_FP8,
        GATED_LINEAR,
        HEAD_LINEAR,
        ROUTE_EXPERTS,
        GROUPED_LINEAR,
        MOE,
        CAUSAL_CONV1D,
        GATED_DELTA_RULE,
        LINEAR_ATTENTION,
        RG_LRU,
        SELECTIVE_SCAN,
        SSD_SCAN,
        DRAW_TOKENS,
        FILTER_THRESHOLDS,
        TOKEN_RANKS,
        PREPARE_DECODE,
        STORE_TOKENS,
    )
}


def available_backends(op: str) -> list[str]:
    """Names of the back ends of `op` that load on this machine, best first.

    Raises:
        UnknownOp: No such op.
    """
    return _op(op).available()


def selected(op: str, device: torch.device | str, dtype: torch.dtype, size: int | None = None) -> str:
    """Name of the back end a call would use.

    Args:
        op: Name of the op.
        device: Device of its tensors.
        dtype: Dtype of its leading tensor.
        size: Head size (attention, KV write, rope) or last dimension; a usual one when None.

    Raises:
        UnknownOp: No such op.
        BackendUnavailable: The back end forced by `use_backend` does not take the problem, or none does.
    """
    entry = _op(op)
    return entry.choose(torch.device(device), dtype, entry.default_size if size is None else size).name


@contextmanager
def use_backend(op: str, name: str) -> Iterator[None]:
    """Use only the back end `name` for `op` inside the block, in every thread of the process.

    A call that back end does not take raises `BackendUnavailable`; nothing falls back in silence.

    Raises:
        UnknownOp: No such op.
        BackendUnavailable: The op has no back end of that name.
    """
    with _op(op).force(name):
        yield


def describe_backends() -> list[BackendStatus]:
    """The state of every back end of every op on this machine, with the reason where one cannot run."""
    return [status for op in OPS.values() for status in op.describe()]


def _op(name: str) -> Op[Callable[..., Any]]:
    try:
        return OPS[name]
    except KeyError:
        raise UnknownOp(f"no op {name!r}; there are: {', '.join(OPS)}") from None
