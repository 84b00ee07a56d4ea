"""The linear op: a matrix product with an optional bias."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import torch

from llm_kernels.backends import (
    by_row_backend,
    cpp_backend,
    cuda_backend,
    torch_backend,
    triton_backends,
)
from llm_kernels.reference import linear as reference_linear
from llm_kernels.registry import Op

_Linear: TypeAlias = Callable[[torch.Tensor, torch.Tensor, torch.Tensor | None], torch.Tensor]

LINEAR: Op[_Linear] = Op(
    "linear",
    [
        torch_backend(reference_linear.linear),
        by_row_backend("linear"),
        cpp_backend("linear", "invariant_linear", is_for_invariance=True),
        cpp_backend("linear", "linear"),
        *triton_backends("invariant_linear", "linear", is_for_invariance=True),
        cuda_backend("invariant_linear", "linear", is_for_invariance=True),
        cuda_backend("linear", "linear", accepts=lambda _, size: size % 8 == 0),
    ],
    default_size=4096,
)


def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """Return `x @ weight.T + bias`.

    Which kernel multiplies, and with which tiles, depends on the number of rows: a row's result may differ in
    its last bits between two batches, but not inside `batch_invariant`. The same inputs give the same bits.

    Args:
        x: [..., E].
        weight: [F, E], dtype of `x`.
        bias: [F] or None.

    Returns:
        [..., F], dtype of `x`.
    """
    return LINEAR.pick(x.device, x.dtype, x.shape[-1])(x, weight, bias)
