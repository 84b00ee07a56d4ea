"""The gated linear op: a fused gate-up projection with its gated activation."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import torch

from llm_kernels.backends import cpp_backend, cuda_backend, torch_backend
from llm_kernels.errors import InvalidArgument
from llm_kernels.ops.activation import ActivationKind, gated_activation
from llm_kernels.ops.fp8_linear import fp8_linear
from llm_kernels.ops.linear import linear
from llm_kernels.reference import gated_linear as reference_gated_linear
from llm_kernels.registry import FLOATS, PLAIN, Backend, Op

_Tensor: TypeAlias = torch.Tensor
_GatedLinear: TypeAlias = Callable[
    [_Tensor, _Tensor, ActivationKind, _Tensor | None, _Tensor | None], _Tensor
]

# What the fused kernels have; the rest is a feature.
_PLAIN_GATES = frozenset({"silu", "gelu", "gelu_tanh"})
_ANY_GATE = frozenset({"any_gate"})


def composed(
    x: torch.Tensor,
    weight: torch.Tensor,
    kind: ActivationKind,
    bias: torch.Tensor | None,
    weight_scale: torch.Tensor | None,
) -> torch.Tensor:
    """The product and the activation as ops of their own, each with its best back end; rounds in between."""
    gate_up = linear(x, weight, bias) if weight_scale is None else fp8_linear(x, weight, weight_scale, bias)
    out = torch.empty((x.shape[0], weight.shape[0] // 2), dtype=x.dtype, device=x.device)
    gated_activation(out, gate_up, kind)
    return out


GATED_LINEAR: Op[_GatedLinear] = Op(
    "gated_linear",
    [
        torch_backend(reference_gated_linear.gated_linear),
        Backend(
            name="composed",
            load=lambda: composed,
            dtypes=FLOATS,
            priority=5,
            features=_ANY_GATE,
            is_batch_invariant=True,  # as the ops that it calls are then
        ),
        cpp_backend("gated_linear", "gated_linear"),
        cuda_backend("linear", "gated_linear", accepts=lambda _, size: size % 8 == 0),
    ],
    default_size=4096,
)


def gated_linear(
    x: torch.Tensor,
    weight: torch.Tensor,
    kind: ActivationKind = "silu",
    bias: torch.Tensor | None = None,
    *,
    weight_scale: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return `act(gate) * up` of `x @ weight.T + bias`, whose first half of the features is the gate.

    Back ends may or may not round the projection to the dtype of `x` before the activation. As with `linear`,
    a row's result may depend on how many rows there are; the same inputs give the same bits.

    Args:
        x: [T, E].
        weight: [2 * I, E], the gate's rows first, dtype of `x`; or float8_e4m3fn, with `weight_scale`.
        kind: The function applied to the gate; see `activation`. Not "xielu".
        bias: [2 * I] or None.
        weight_scale: As in `fp8_linear`, or None.

    Returns:
        [T, I], dtype of `x`.

    Raises:
        InvalidArgument: Unknown `kind`, or shapes that do not fit.
    """
    if x.ndim != 2:
        raise InvalidArgument("x", f"expected [T, E], got {list(x.shape)}")
    if weight.ndim != 2 or weight.shape[0] % 2 != 0 or weight.shape[1] != x.shape[1]:
        raise InvalidArgument("weight", f"expected [2 * I, {x.shape[1]}], got {list(weight.shape)}")
    features = PLAIN if kind in _PLAIN_GATES else _ANY_GATE
    return GATED_LINEAR.pick(x.device, x.dtype, x.shape[1], features)(x, weight, kind, bias, weight_scale)
