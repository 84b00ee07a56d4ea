"""Owns what e4m3 numbers and their scales are like; knows nothing about how they are multiplied.

A quantized tensor is its e4m3 values times float32 scales. Activations [T, I] have a scale a token, [T, 1],
or one a token and group of 128 inputs, [T, G]. Weights [O, I] have one in all, [], one an output, [O], or one
a block of 128 outputs and 128 inputs, [ceil(O / 128), G].
"""

from __future__ import annotations

import torch

from llm_kernels.checks import check_dtype, check_shape
from llm_kernels.errors import InvalidArgument

E4M3 = torch.float8_e4m3fn
E4M3_MAX = 448.0
GROUP = 128
"""Inputs that share a scale, and outputs that do, where scales are a block."""
LEAST = 1e-10
"""Stands for the largest magnitude of a row of zeros, so that its scale is none."""


def num_groups(size: int) -> int:
    """Groups of 128 that cover `size`."""
    return -(-size // GROUP)


def check_quantized(values_TI: torch.Tensor, scales_TG: torch.Tensor) -> None:
    """Checks quantized activations: e4m3 [T, I] and float32 [T, 1] or [T, ceil(I / 128)]."""
    if values_TI.ndim != 2:
        raise InvalidArgument("values_TI", f"expected [T, I], got {list(values_TI.shape)}")
    check_dtype("values_TI", values_TI, E4M3)
    tokens, size = values_TI.shape
    groups = scales_TG.shape[-1] if scales_TG.ndim == 2 else 0
    if groups not in (1, num_groups(size)):
        wanted = f"expected [T, 1] or [T, {num_groups(size)}]"
        raise InvalidArgument("scales_TG", f"{wanted}, got {list(scales_TG.shape)}")
    check_shape("scales_TG", scales_TG, (tokens, groups), values_TI.device)
    check_dtype("scales_TG", scales_TG, torch.float32)


def check_weight(
    weight_OI: torch.Tensor, weight_scale: torch.Tensor, size: int, device: torch.device
) -> None:
    """Checks a quantized weight for inputs of `size`: e4m3 [O, I], float32 [], [O] or one a block."""
    if weight_OI.ndim != 2 or weight_OI.shape[1] != size:
        raise InvalidArgument("weight_OI", f"expected [O, {size}], got {list(weight_OI.shape)}")
    check_shape("weight_OI", weight_OI, (weight_OI.shape[0], size), device)
    check_dtype("weight_OI", weight_OI, E4M3)
    outputs = weight_OI.shape[0]
    shapes = {0: (), 1: (outputs,), 2: (num_groups(outputs), num_groups(size))}
    if weight_scale.ndim not in shapes:
        raise InvalidArgument("weight_scale", f"expected [], [O] or blocks, got {list(weight_scale.shape)}")
    check_shape("weight_scale", weight_scale, shapes[weight_scale.ndim], device)
    check_dtype("weight_scale", weight_scale, torch.float32)


def check_bias(bias_O: torch.Tensor | None, outputs: int, device: torch.device) -> None:
    """Checks the bias of a linear layer, where there is one."""
    if bias_O is not None:
        check_shape("bias_O", bias_O, (outputs,), device)


def check_input_scale(input_scale: torch.Tensor | None, device: torch.device) -> None:
    """Checks a static scale of activations: float32 []."""
    if input_scale is not None:
        check_shape("input_scale", input_scale, (), device)
        check_dtype("input_scale", input_scale, torch.float32)


def check_contiguous(field: str, x: torch.Tensor) -> None:
    """Raises `InvalidArgument` unless `x` is contiguous."""
    if not x.is_contiguous():
        raise InvalidArgument(field, "must be contiguous")
