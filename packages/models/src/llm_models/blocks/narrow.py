"""Owns activations that are quantized already when a linear layer reads them; knows nothing about blocks."""

from dataclasses import dataclass

import torch
from torch import Tensor

from llm_models.quantization import BLOCK


@dataclass(frozen=True, slots=True)
class Narrow:
    """e4m3 activations with their scales, in place of a tensor [T, I] of the model's number format.

    Attributes:
        values: float8_e4m3fn [T, I].
        scales: float32 [T, 1], or [T, ceil(I / 128)] for weights with a scale a block.
        dtype: What linear layers make of them: the model's number format.
    """

    values: Tensor
    scales: Tensor
    dtype: torch.dtype

    @property
    def shape(self) -> torch.Size:
        """[T, I]."""
        return self.values.shape

    @property
    def device(self) -> torch.device:
        """Where they are."""
        return self.values.device


def empty_narrow(tokens: int, size: int, weight_scale: Tensor, dtype: torch.dtype) -> Narrow:
    """Room for the activations that a layer with these scales reads, still to be written."""
    groups = -(-size // BLOCK) if weight_scale.ndim == 2 else 1
    device = weight_scale.device
    return Narrow(
        torch.empty((tokens, size), dtype=torch.float8_e4m3fn, device=device),
        # The tokens of a group side by side, as products with blocks want them.
        torch.empty((groups, tokens), dtype=torch.float32, device=device).t(),
        dtype,
    )
