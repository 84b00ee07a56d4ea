"""Owns the arithmetic of e4m3 weights while they are loaded: quantizing, and giving back wider numbers.

Knows nothing about files or parameters.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from llm_models.quantization import BLOCK, WeightScales

E4M3 = torch.float8_e4m3fn
_LARGEST = 448.0
_LEAST = 1e-10
# Numbers quantized at a time, which bounds the memory for their float32 form.
_PIECE = 1 << 24


def blocks(size: int) -> int:
    """Blocks of 128 that cover `size`."""
    return -(-size // BLOCK)


def scale_shape(scales: WeightScales, outputs: int, inputs: int) -> tuple[int, ...]:
    """Shape of the scales that a weight [outputs, inputs] has at run time: one an output, or one a block."""
    return (blocks(outputs), blocks(inputs)) if scales == "block" else (outputs,)


def row_scales(scale: Tensor, outputs: int, inputs: int) -> Tensor:
    """Scales as a checkpoint stores them, as float32 [outputs, 1] or [outputs, blocks of the inputs].

    Args:
        scale: One number, one an output, or one a block; any float format.
        outputs: Rows of the weight.
        inputs: Its columns.

    Raises:
        ValueError: The shape is none of these.
    """
    if scale.numel() == 1:
        return scale.float().reshape(1, 1).expand(outputs, 1)
    if scale.shape in ((outputs,), (outputs, 1)):
        return scale.float().reshape(outputs, 1)
    if scale.shape == (blocks(outputs), blocks(inputs)):
        return scale.float().repeat_interleave(BLOCK, 0)[:outputs]
    raise ValueError(f"has shape {list(scale.shape)}, which does not go with a weight [{outputs}, {inputs}]")


def dequantize(values_OI: Tensor, scales_OG: Tensor, first_column: int, out: Tensor) -> None:
    """Writes e4m3 values times their scales into `out`.

    Args:
        values_OI: Some rows and columns of a weight.
        scales_OG: Those rows' scales; G counts all of the weight's blocks of columns, or is 1.
        first_column: Which column of the weight the first one is.
        out: [O, I], any float format.
    """
    if scales_OG.shape[1] > 1:
        columns = torch.arange(first_column, first_column + values_OI.shape[1], device=scales_OG.device)
        scales_OG = scales_OG[:, columns // BLOCK]
    out.copy_(values_OI.float() * scales_OG)


def quantize(weight_OI: Tensor, scales: WeightScales, out_OI: Tensor, out_scale: Tensor) -> None:
    """Writes a weight as e4m3 values and scales, largest magnitude over 448.

    Args:
        weight_OI: Any float format.
        scales: Where `tensor`, all outputs get the same scale.
        out_OI: float8_e4m3fn [O, I].
        out_scale: float32, of `scale_shape`.
    """
    if scales == "block":
        _quantize_blocks(weight_OI, out_OI, out_scale)
        return
    rows = max(1, _PIECE // max(1, weight_OI.shape[1]))
    pieces = [piece.abs().amax(dim=1).float() for piece in torch.split(weight_OI, rows)]
    out_scale.copy_(torch.cat(pieces).clamp_min(_LEAST) / _LARGEST)
    if scales == "tensor":
        out_scale.copy_(out_scale.amax().expand_as(out_scale))
    _divide(torch.split(weight_OI, rows), torch.split(out_scale, rows), torch.split(out_OI, rows))


def _divide(weights: Sequence[Tensor], scales: Sequence[Tensor], outs: Sequence[Tensor]) -> None:
    for weight_OI, scale_O, out_OI in zip(weights, scales, outs, strict=True):
        out_OI.copy_((weight_OI.float() / scale_O[:, None]).to(E4M3))


def _quantize_blocks(weight_OI: Tensor, out_OI: Tensor, out_scale: Tensor) -> None:
    inputs = weight_OI.shape[1]
    for index, piece_OI in enumerate(torch.split(weight_OI, BLOCK)):
        padded = torch.nn.functional.pad(piece_OI.float(), (0, blocks(inputs) * BLOCK - inputs))
        largest_G = padded.abs().view(padded.shape[0], -1, BLOCK).amax(dim=(0, 2))
        out_scale[index] = largest_G.clamp_min(_LEAST) / _LARGEST
        divisor_I = out_scale[index].repeat_interleave(BLOCK)[:inputs]
        out_OI[index * BLOCK : (index + 1) * BLOCK].copy_((piece_OI.float() / divisor_I).to(E4M3))
