"""The gated projection of a feed-forward block between quantized activations: e4m3 in, e4m3 out."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import torch

from llm_kernels.backends import torch_backend
from llm_kernels.errors import InvalidArgument
from llm_kernels.ops.activation import ActivationKind
from llm_kernels.ops.fp8_linear import BLOCK_SCALES, fp8_product
from llm_kernels.ops.quantize_fp8 import gated_activation_fp8
from llm_kernels.reference import fp8_gated as reference
from llm_kernels.registry import FLOATS, PLAIN, Backend, Op

_Tensor: TypeAlias = torch.Tensor
_GatedProduct: TypeAlias = Callable[
    [_Tensor, _Tensor, _Tensor, _Tensor, _Tensor, _Tensor, ActivationKind, _Tensor | None, torch.dtype], None
]


def composed(
    inner_values_TI: torch.Tensor,
    inner_scales_TG: torch.Tensor,
    values_TE: torch.Tensor,
    scales_TG: torch.Tensor,
    weight_OE: torch.Tensor,
    weight_scale: torch.Tensor,
    kind: ActivationKind,
    bias_O: torch.Tensor | None,
    dtype: torch.dtype,
) -> None:
    """The product, then activation and quantization in one, with their best back ends; rounds in between."""
    gate_up = fp8_product(values_TE, scales_TG, weight_OE, weight_scale, bias_O, dtype=dtype)
    gated_activation_fp8(inner_values_TI, inner_scales_TG, gate_up, kind)


FP8_GATED_PRODUCT: Op[_GatedProduct] = Op(
    "fp8_gated_product",
    [
        torch_backend(reference.fp8_gated_product),
        Backend(name="composed", load=lambda: composed, dtypes=FLOATS, priority=5, features=BLOCK_SCALES),
    ],
    default_size=4096,
)


def fp8_gated_product(
    inner_values_TI: torch.Tensor,
    inner_scales_TG: torch.Tensor,
    values_TE: torch.Tensor,
    scales_TG: torch.Tensor,
    weight_OE: torch.Tensor,
    weight_scale: torch.Tensor,
    kind: ActivationKind = "silu",
    bias_O: torch.Tensor | None = None,
    *,
    dtype: torch.dtype,
) -> None:
    """Write `act(gate) * up` of a product as e4m3 values and scales; the gate is its first half of outputs.

    Back ends may or may not round to `dtype` before the activation and before the quantization.

    Args:
        inner_values_TI: float8_e4m3fn [T, O / 2], contiguous; written.
        inner_scales_TG: float32 [T, 1], or [T, ceil(O / 256)] for a scale a group of 128; written.
        values_TE: float8_e4m3fn [T, E], contiguous.
        scales_TG: As in `fp8_product`.
        weight_OE: float8_e4m3fn [O, E], the gate's rows first.
        weight_scale: As in `fp8_linear`.
        kind: The function applied to the gate; see `activation`. Not "xielu".
        bias_O: [O] or None.
        dtype: The model's number format, of what lies in between.

    Raises:
        InvalidArgument: "xielu", or shapes or dtypes that do not fit.
    """
    if kind == "xielu":
        raise InvalidArgument("kind", "xielu is not for gates")
    wanted = [values_TE.shape[0], weight_OE.shape[0] // 2]
    if list(inner_values_TI.shape) != wanted:
        raise InvalidArgument("inner_values_TI", f"expected {wanted}, got {list(inner_values_TI.shape)}")
    features = BLOCK_SCALES if weight_scale.ndim == 2 else PLAIN
    product = FP8_GATED_PRODUCT.pick(values_TE.device, dtype, values_TE.shape[-1], features)
    product(
        inner_values_TI,
        inner_scales_TG,
        values_TE,
        scales_TG,
        weight_OE,
        weight_scale,
        kind,
        bias_O,
        dtype,
    )
