"""Linear layers with e4m3 weights in torch, float32 inside; the meaning of `fp8_linear` and `fp8_product`."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from llm_kernels.errors import InvalidArgument
from llm_kernels.fp8_format import E4M3, check_bias, check_input_scale, check_quantized, check_weight
from llm_kernels.reference.quantize_fp8 import dequantize_activation, dequantize_weight


def fp8_linear(
    x_TI: torch.Tensor,
    weight_OI: torch.Tensor,
    weight_scale: torch.Tensor,
    bias_O: torch.Tensor | None,
    input_scale: torch.Tensor | None,
) -> torch.Tensor:
    """Reference of `ops.fp8_linear`: quantizes no activations."""
    check_fp8_linear(x_TI, weight_OI, weight_scale, bias_O, input_scale)
    weight = dequantize_weight(weight_OI, weight_scale)
    return F.linear(x_TI.float(), weight, None if bias_O is None else bias_O.float()).to(x_TI.dtype)


def fp8_product(
    values_TI: torch.Tensor,
    scales_TG: torch.Tensor,
    weight_OI: torch.Tensor,
    weight_scale: torch.Tensor,
    bias_O: torch.Tensor | None,
    dtype: torch.dtype,
) -> torch.Tensor:
    """Reference of `ops.fp8_product`."""
    check_fp8_product(values_TI, scales_TG, weight_OI, weight_scale, bias_O)
    weight = dequantize_weight(weight_OI, weight_scale)
    x_TI = dequantize_activation(values_TI, scales_TG)
    return F.linear(x_TI, weight, None if bias_O is None else bias_O.float()).to(dtype)


def check_fp8_linear(
    x_TI: torch.Tensor,
    weight_OI: torch.Tensor,
    weight_scale: torch.Tensor,
    bias_O: torch.Tensor | None,
    input_scale: torch.Tensor | None,
) -> None:
    """Checks the tensors of `ops.fp8_linear`."""
    if x_TI.ndim != 2 or not x_TI.is_floating_point() or x_TI.dtype.itemsize == 1:
        raise InvalidArgument("x_TI", f"expected floats [T, I], got {x_TI.dtype} {list(x_TI.shape)}")
    check_weight(weight_OI, weight_scale, x_TI.shape[1], x_TI.device)
    check_bias(bias_O, weight_OI.shape[0], x_TI.device)
    check_input_scale(input_scale, x_TI.device)


def check_fp8_product(
    values_TI: torch.Tensor,
    scales_TG: torch.Tensor,
    weight_OI: torch.Tensor,
    weight_scale: torch.Tensor,
    bias_O: torch.Tensor | None,
) -> None:
    """Checks the tensors of `ops.fp8_product`."""
    if bias_O is None and _are_plain(values_TI, scales_TG, weight_OI, weight_scale):
        return
    check_quantized(values_TI, scales_TG)
    check_weight(weight_OI, weight_scale, values_TI.shape[1], values_TI.device)
    check_bias(bias_O, weight_OI.shape[0], values_TI.device)
    if scales_TG.shape[1] > 1 and weight_scale.ndim != 2:
        raise InvalidArgument("scales_TG", "scales a group go with weight scales a block")


def _are_plain(
    values_TI: torch.Tensor, scales_TG: torch.Tensor, weight_OI: torch.Tensor, weight_scale: torch.Tensor
) -> bool:
    """Whether they fit with a scale a token and an output: the common case at a third of the host's time."""
    values, weight = values_TI.shape, weight_OI.shape
    return (
        len(values) == len(weight) == 2
        and values[1] == weight[1]
        and scales_TG.shape == (values[0], 1)
        and weight_scale.shape == weight[:1]
        and values_TI.dtype == weight_OI.dtype == E4M3
        and scales_TG.dtype == weight_scale.dtype == torch.float32
        and values_TI.device == weight_OI.device == scales_TG.device == weight_scale.device
    )
