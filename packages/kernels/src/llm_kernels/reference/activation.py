"""Activations, plain and gated, in torch, float32 inside; the meaning of the activation ops."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F

from llm_kernels.checks import check_activation, check_gate_options, check_gated
from llm_kernels.errors import InvalidArgument

_XIELU_EPS = -1e-6


def activation(out: torch.Tensor, x: torch.Tensor, kind: str, parameters: torch.Tensor | None) -> None:
    """Reference of `ops.activation`."""
    check_activation(out, x, kind, parameters)
    if parameters is not None:
        out.copy_(_xielu(x.float(), parameters))
        return
    out.copy_(_function(kind)(x.float()))


def gated_activation(
    out: torch.Tensor, gate_up: torch.Tensor, kind: str, limit: float | None, alpha: float | None
) -> None:
    """Reference of `ops.gated_activation`."""
    check_gated(out, gate_up)
    out.copy_(gated(gate_up, kind, limit, alpha))


def gated(gate_up: torch.Tensor, kind: str, limit: float | None, alpha: float | None) -> torch.Tensor:
    """The gated activation of [T, 2 * I] as a new float32 tensor [T, I]."""
    function = _function(kind)
    check_gate_options(kind, limit, alpha)
    gate, up = gate_up.float().chunk(2, dim=-1)
    if limit is not None:
        gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
    if alpha is not None:
        return gate * torch.sigmoid(alpha * gate) * (up + 1)
    return function(gate) * up


def ungated(x: torch.Tensor, kind: str) -> torch.Tensor:
    """The plain activation as a new float32 tensor."""
    return _function(kind)(x.float())


def _gelu_tanh(x: torch.Tensor) -> torch.Tensor:
    return F.gelu(x, approximate="tanh")


def _gelu_10(x: torch.Tensor) -> torch.Tensor:
    return F.gelu(x).clamp(-10, 10)


def _quick_gelu(x: torch.Tensor) -> torch.Tensor:
    return x * torch.sigmoid(1.702 * x)


def _relu2(x: torch.Tensor) -> torch.Tensor:
    return F.relu(x).square()


def _laplace(x: torch.Tensor) -> torch.Tensor:
    return 0.5 * (1.0 + torch.erf((x - 0.707107) / (0.282095 * 2.0**0.5)))


def _sqrtsoftplus(x: torch.Tensor) -> torch.Tensor:
    return F.softplus(x).sqrt()


def _identity(x: torch.Tensor) -> torch.Tensor:
    return x


def _xielu(x: torch.Tensor, parameters: torch.Tensor) -> torch.Tensor:
    alpha_p, alpha_n, beta = parameters.float().unbind()
    negative = (torch.expm1(x.clamp(max=_XIELU_EPS)) - x) * alpha_n
    return torch.where(x > 0, alpha_p * x * x, negative) + beta * x


def _function(kind: str) -> Callable[[torch.Tensor], torch.Tensor]:
    try:
        return _FUNCTIONS[kind]
    except KeyError:
        raise InvalidArgument("kind", f"expected one of {', '.join(_FUNCTIONS)}, got {kind!r}") from None


_FUNCTIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_tanh": _gelu_tanh,
    "gelu_10": _gelu_10,
    "quick_gelu": _quick_gelu,
    "relu": F.relu,
    "relu2": _relu2,
    "relu6": F.relu6,
    "leaky_relu": F.leaky_relu,
    "hardswish": F.hardswish,
    "mish": F.mish,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "softplus": F.softplus,
    "sqrtsoftplus": _sqrtsoftplus,
    "laplace": _laplace,
    "identity": _identity,
}
