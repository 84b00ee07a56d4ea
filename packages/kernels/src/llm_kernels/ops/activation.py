"""The activation op: gated activations of a fused gate-up projection."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, TypeAlias

import torch

from llm_kernels.backends import cpp_backend, torch_backend, triton_backends
from llm_kernels.reference import activation as reference_activation
from llm_kernels.registry import Op

ActivationKind: TypeAlias = Literal["silu", "gelu", "gelu_tanh"]
_Gated: TypeAlias = Callable[[torch.Tensor, torch.Tensor, str], None]

GATED_ACTIVATION: Op[_Gated] = Op(
    "gated_activation",
    [
        torch_backend(reference_activation.gated_activation),
        cpp_backend("activation", "gated_activation"),
        *triton_backends("activation", "gated_activation"),
    ],
    default_size=8192,
)


def gated_activation(out: torch.Tensor, gate_up: torch.Tensor, kind: ActivationKind = "silu") -> None:
    """Write `act(gate) * up` into `out`, computed in float32 and rounded once.

    Args:
        out: [T, I], dtype of `gate_up`.
        gate_up: [T, 2 * I], the gate half first.
        kind: "silu", "gelu" (exact, erf) or "gelu_tanh".

    Raises:
        InvalidArgument: Unknown `kind`, or shapes that do not fit.
    """
    GATED_ACTIVATION.pick(gate_up.device, gate_up.dtype, gate_up.shape[-1])(out, gate_up, kind)
