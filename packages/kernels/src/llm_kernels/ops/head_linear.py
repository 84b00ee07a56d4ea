"""The linear op whose weights depend on the head."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import torch

from llm_kernels.backends import by_row_backend, torch_backend, triton_backends
from llm_kernels.errors import InvalidArgument
from llm_kernels.reference import head_linear as reference
from llm_kernels.registry import Op

_HeadLinear: TypeAlias = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]

HEAD_LINEAR: Op[_HeadLinear] = Op(
    "head_linear",
    [
        torch_backend(reference.head_linear),
        by_row_backend("head_linear"),
        *triton_backends("invariant_linear", "head_linear", is_for_invariance=True),
    ],
    default_size=128,
)


def head_linear(x_THI: torch.Tensor, weight_HOI: torch.Tensor) -> torch.Tensor:
    """Return `x[:, h] @ weight[h].T` for each head h.

    Args:
        x_THI: [T, H, I]; may be strided, with a contiguous last dimension.
        weight_HOI: [H, O, I], dtype of `x`; any strides.

    Returns:
        [T, H, O], dtype of `x`; of any strides.

    Raises:
        InvalidArgument: Shapes or dtypes that do not fit.
    """
    if x_THI.ndim != 3:
        raise InvalidArgument("x_THI", f"expected [T, H, I], got {list(x_THI.shape)}")
    num_heads, in_size = x_THI.shape[1:]
    if weight_HOI.ndim != 3 or (weight_HOI.shape[0], weight_HOI.shape[2]) != (num_heads, in_size):
        raise InvalidArgument(
            "weight_HOI", f"expected [{num_heads}, O, {in_size}], got {list(weight_HOI.shape)}"
        )
    if weight_HOI.dtype != x_THI.dtype:
        raise InvalidArgument("weight_HOI", f"expected {x_THI.dtype}, got {weight_HOI.dtype}")
    return HEAD_LINEAR.pick(x_THI.device, x_THI.dtype, in_size)(x_THI, weight_HOI)
