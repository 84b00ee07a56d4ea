"""The normed linear op: a branch's first projection with the norm of the residual stream before it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import torch

from llm_kernels.backends import cuda_backend, torch_backend
from llm_kernels.errors import InvalidArgument
from llm_kernels.ops.activation import ActivationKind
from llm_kernels.ops.fp8_linear import fp8_linear
from llm_kernels.ops.gated_linear import gated_linear
from llm_kernels.ops.linear import linear
from llm_kernels.ops.norm import fused_add_rms_norm, rms_norm
from llm_kernels.reference import normed_linear as reference_normed_linear
from llm_kernels.registry import FLOATS, PLAIN, Backend, Op

_Tensor: TypeAlias = torch.Tensor
_NormedLinear: TypeAlias = Callable[
    [
        _Tensor,
        _Tensor | None,
        _Tensor | None,
        float,
        _Tensor,
        ActivationKind | None,
        _Tensor | None,
        _Tensor | None,
    ],
    tuple[_Tensor, _Tensor],
]

# What the fused kernels have; the rest is a feature.
_PLAIN_GATES = frozenset({"silu", "gelu", "gelu_tanh", None})
_ANY_GATE = frozenset({"any_gate"})

_MOST_TOKENS = 8


def composed(
    x: torch.Tensor,
    residual: torch.Tensor | None,
    norm_weight: torch.Tensor | None,
    eps: float,
    weight: torch.Tensor,
    kind: ActivationKind | None,
    bias: torch.Tensor | None,
    weight_scale: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The norm and the product as ops of their own, each with its best back end."""
    if residual is None:
        normal, stream = torch.empty_like(x), x
        rms_norm(normal, x, norm_weight, eps)
    else:
        normal, stream = x, residual
        fused_add_rms_norm(x, residual, norm_weight, eps)
    if kind is not None:
        return gated_linear(normal, weight, kind, bias, weight_scale=weight_scale), stream
    if weight_scale is not None:
        return fp8_linear(normal, weight, weight_scale, bias), stream
    return linear(normal, weight, bias), stream


NORMED_LINEAR: Op[_NormedLinear] = Op(
    "normed_linear",
    [
        torch_backend(reference_normed_linear.normed_linear),
        Backend(name="composed", load=lambda: composed, dtypes=FLOATS, priority=5, features=_ANY_GATE),
        cuda_backend("linear", "normed_linear", accepts=lambda _, size: size % 8 == 0),
    ],
    default_size=4096,
)


def normed_linear(
    x: torch.Tensor,
    residual: torch.Tensor | None,
    norm_weight: torch.Tensor | None,
    eps: float,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    *,
    kind: ActivationKind | None = None,
    weight_scale: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return `rms_norm(residual + x) @ weight.T + bias`, with `kind` gated, and the sum.

    `x` and `residual` are given up: they may be overwritten, and the sum may be one of them. As with
    `linear`, a row's result may depend on how many rows there are; the same inputs give the same bits.

    Args:
        x: [T, E], contiguous: what is to be added, or all of the stream.
        residual: [T, E], contiguous, or None.
        norm_weight: [E], float32 or the dtype of `x`, or None.
        eps: Added to the mean square.
        weight: [O, E], dtype of `x`; or float8_e4m3fn, with `weight_scale`.
        bias: [O] or None.
        kind: With one, the first half of the outputs is a gate, as in `gated_linear`.
        weight_scale: As in `fp8_linear`, or None.

    Returns:
        [T, O], or [T, O / 2] with a gate; and the sum [T, E]; both of the dtype of `x`.

    Raises:
        InvalidArgument: Unknown `kind`, or shapes that do not fit.
    """
    if x.ndim != 2:
        raise InvalidArgument("x", f"expected [T, E], got {list(x.shape)}")
    if residual is not None and residual.shape != x.shape:
        raise InvalidArgument("residual", f"expected {list(x.shape)}, got {list(residual.shape)}")
    if weight.ndim != 2 or weight.shape[1] != x.shape[1]:
        raise InvalidArgument("weight", f"expected [O, {x.shape[1]}], got {list(weight.shape)}")
    features = PLAIN if kind in _PLAIN_GATES else _ANY_GATE
    run = NORMED_LINEAR.pick(x.device, x.dtype, x.shape[1], features)
    return run(x, residual, norm_weight, eps, weight, kind, bias, weight_scale)


def fuses_norm(weight: torch.Tensor, tokens: int, dtype: torch.dtype) -> bool:
    """Whether `normed_linear` is one kernel for so many tokens of `dtype`, and so quicker than two ops."""
    if not weight.is_cuda or not is_narrow(tokens, weight.shape[1]):
        return False
    return NORMED_LINEAR.choose(weight.device, dtype, weight.shape[1]).name == "cuda"


def is_narrow(tokens: int, size: int) -> bool:
    """Whether so many tokens of `size` are few enough for each block of a kernel to norm them all."""
    return 0 < tokens <= _MOST_TOKENS and tokens * size <= _MOST_TOKENS * 4096
