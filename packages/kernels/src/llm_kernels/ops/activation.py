"""The activation ops: plain activations, and gated activations of a fused gate-up projection."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, TypeAlias, get_args

import torch

from llm_kernels.backends import by_row_backend, cpp_backend, torch_backend, triton_backends
from llm_kernels.errors import InvalidArgument
from llm_kernels.reference import activation as reference_activation
from llm_kernels.registry import PLAIN, Op

ActivationKind: TypeAlias = Literal[
    "silu",
    "gelu",
    "gelu_tanh",
    "gelu_10",
    "quick_gelu",
    "relu",
    "relu2",
    "relu6",
    "leaky_relu",
    "hardswish",
    "mish",
    "sigmoid",
    "tanh",
    "softplus",
    "sqrtsoftplus",
    "laplace",
    "identity",
    "xielu",
]
_Activation: TypeAlias = Callable[[torch.Tensor, torch.Tensor, str, torch.Tensor | None], None]
_Gated: TypeAlias = Callable[[torch.Tensor, torch.Tensor, str, float | None, float | None], None]

_GATES = frozenset(get_args(ActivationKind)) - {"xielu"}
# What every back end of the gated activation has; the rest is a feature.
_PLAIN_GATES = frozenset({"silu", "gelu", "gelu_tanh"})
_ANY_GATE = frozenset({"any_gate"})

ACTIVATION: Op[_Activation] = Op(
    "activation",
    [
        torch_backend(reference_activation.activation),
        by_row_backend("activation"),
        *triton_backends("activation", "activation", is_batch_invariant=True),
    ],
    default_size=8192,
)
GATED_ACTIVATION: Op[_Gated] = Op(
    "gated_activation",
    [
        torch_backend(reference_activation.gated_activation),
        by_row_backend("gated_activation"),
        cpp_backend("activation", "gated_activation", is_batch_invariant=True),
        *triton_backends("activation", "gated_activation", features=_ANY_GATE, is_batch_invariant=True),
    ],
    default_size=8192,
)


def activation(
    out: torch.Tensor, x: torch.Tensor, kind: ActivationKind, *, parameters: torch.Tensor | None = None
) -> None:
    """Write `act(x)` into `out`, computed in float32 and rounded once. `out` may be `x`.

    The kinds bear the names of transformers' `ACT2FN`, one for all that mean the same: "gelu_tanh" also for
    gelu_new, gelu_fast, gelu_accurate, gelu_pytorch_tanh and gelu_python_tanh; "gelu" also for gelu_python;
    "silu" also for swish; "identity" for linear.

    Args:
        out: [T, I], dtype of `x`; the last dimension contiguous.
        x: [T, I]; may be a strided view such as one part of a fused projection.
        kind: The function.
        parameters: For "xielu" only: [3], alpha_p and alpha_n as applied (after their softplus) and beta.

    Raises:
        InvalidArgument: Unknown `kind`, `parameters` missing or not wanted, or shapes that do not fit.
    """
    ACTIVATION.pick(x.device, x.dtype, x.shape[-1])(out, x, kind, parameters)


def gated_activation(
    out: torch.Tensor,
    gate_up: torch.Tensor,
    kind: ActivationKind = "silu",
    *,
    limit: float | None = None,
    alpha: float | None = None,
) -> None:
    """Write `act(gate) * up` into `out`, computed in float32 and rounded once.

    Args:
        out: [T, I], dtype of `gate_up`.
        gate_up: [T, 2 * I], the gate half first.
        kind: The function applied to the gate; see `activation`. Not "xielu".
        limit: Clamp the gate from above and the up half from both sides first (DeepSeek V4; gpt-oss).
        alpha: With "silu": `gate * sigmoid(alpha * gate) * (up + 1)` (gpt-oss, with its limit).

    Raises:
        InvalidArgument: Unknown `kind`, a bad `limit`, `alpha` with another kind, or shapes that do not fit.
    """
    features = PLAIN
    if limit is not None or alpha is not None or kind not in _PLAIN_GATES:
        features = _ANY_GATE
        if kind not in _GATES:
            raise InvalidArgument("kind", f"expected one of {', '.join(sorted(_GATES))}, got {kind!r}")
    gate = GATED_ACTIVATION.pick(gate_up.device, gate_up.dtype, gate_up.shape[-1], features)
    gate(out, gate_up, kind, limit, alpha)
