"""Linear layers with e4m3 weights: with activations in the model's number format, or quantized before."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import torch

from llm_kernels.backends import cuda_backend, torch_backend, triton_backends
from llm_kernels.invariance import is_batch_invariance_wanted
from llm_kernels.ops.fp8_support import has_e4m3
from llm_kernels.reference import fp8_linear as reference
from llm_kernels.registry import PLAIN, Op

_Tensor: TypeAlias = torch.Tensor
_Linear: TypeAlias = Callable[[_Tensor, _Tensor, _Tensor, _Tensor | None, _Tensor | None], _Tensor]
_Product: TypeAlias = Callable[[_Tensor, _Tensor, _Tensor, _Tensor, _Tensor | None, torch.dtype], _Tensor]

BLOCK_SCALES = frozenset({"block_scales"})
"""The feature of weights with a scale a block of 128 x 128."""

FP8_LINEAR: Op[_Linear] = Op(
    "fp8_linear",
    [
        torch_backend(reference.fp8_linear),
        *triton_backends("fp8_linear", "fp8_linear", accepts=has_e4m3, features=BLOCK_SCALES),
        *triton_backends(
            "invariant_fp8_linear",
            "fp8_linear",
            accepts=has_e4m3,
            features=BLOCK_SCALES,
            is_for_invariance=True,
        ),
        cuda_backend("fp8_linear", "fp8_linear", features=BLOCK_SCALES),
    ],
    default_size=4096,
)
FP8_PRODUCT: Op[_Product] = Op(
    "fp8_product",
    [
        torch_backend(reference.fp8_product),
        *triton_backends("fp8_linear", "fp8_product", accepts=has_e4m3, features=BLOCK_SCALES),
        cuda_backend("fp8_linear", "fp8_product", features=BLOCK_SCALES),
    ],
    default_size=4096,
)


def fp8_linear(
    x_TI: torch.Tensor,
    weight_OI: torch.Tensor,
    weight_scale: torch.Tensor,
    bias_O: torch.Tensor | None = None,
    *,
    input_scale: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return `x @ (weight * scale).T + bias`.

    The reference, and some back ends for few tokens, compute with `x` as it is. Others quantize it first:
    with a scale a token, for block scales one a token and group of 128 inputs, or with `input_scale`. Few
    tokens may have a scale a token and group whatever the scales of the weight.

    Args:
        x_TI: [T, I].
        weight_OI: float8_e4m3fn [O, I], contiguous.
        weight_scale: float32 [], [O], or [ceil(O / 128), ceil(I / 128)] for blocks of 128 x 128.
        bias_O: [O] or None.
        input_scale: float32 [] or None: the scale of `x` for back ends that quantize it, known beforehand.

    Returns:
        [T, O], dtype of `x`.

    Raises:
        InvalidArgument: Shapes or dtypes that do not fit.
    """
    features = BLOCK_SCALES if weight_scale.ndim == 2 else PLAIN
    linear = FP8_LINEAR.pick(x_TI.device, x_TI.dtype, x_TI.shape[-1], features)
    return linear(x_TI, weight_OI, weight_scale, bias_O, input_scale)


def fp8_quantizes_from(weight_OI: torch.Tensor, weight_scale: torch.Tensor, dtype: torch.dtype) -> int | None:
    """The fewest tokens that `fp8_linear` quantizes before its product; None: it never does so.

    From there on it pays to let the op before write e4m3 (`rms_norm_fp8`, `gated_activation_fp8`) and to call
    `fp8_product`.

    Args:
        weight_OI: As in `fp8_linear`.
        weight_scale: As in `fp8_linear`.
        dtype: Of `x`.
    """
    if is_batch_invariance_wanted():
        return None
    features = BLOCK_SCALES if weight_scale.ndim == 2 else PLAIN
    name = FP8_LINEAR.choose(weight_OI.device, dtype, weight_OI.shape[1], features).name
    if name == "torch":
        return None
    if name != "cuda":
        return 1
    from llm_kernels.cuda.fp8_linear import most_widened_tokens

    return most_widened_tokens(weight_scale) + 1


def fp8_product(
    values_TI: torch.Tensor,
    scales_TG: torch.Tensor,
    weight_OI: torch.Tensor,
    weight_scale: torch.Tensor,
    bias_O: torch.Tensor | None = None,
    *,
    dtype: torch.dtype,
) -> torch.Tensor:
    """As `fp8_linear`, for activations that are quantized already.

    Args:
        values_TI: float8_e4m3fn [T, I], contiguous.
        scales_TG: float32 [T, 1]; with block scales of the weight also [T, ceil(I / 128)].
        weight_OI: As in `fp8_linear`.
        weight_scale: As in `fp8_linear`.
        bias_O: [O] or None.
        dtype: Of the result.

    Returns:
        [T, O].

    Raises:
        InvalidArgument: Shapes or dtypes that do not fit.
    """
    features = BLOCK_SCALES if weight_scale.ndim == 2 else PLAIN
    product = FP8_PRODUCT.pick(values_TI.device, dtype, values_TI.shape[-1], features)
    return product(values_TI, scales_TG, weight_OI, weight_scale, bias_O, dtype)
