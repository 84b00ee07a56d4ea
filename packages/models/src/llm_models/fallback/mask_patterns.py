"""Owns telling which keys a query sees from transformers' mask functions; knows nothing about attention.

While a model is recorded, a mask is an int64 tensor of one value that spells its pattern. It survives slices
and copies; whatever else a model does to it is noticed, since the value or the number format then changes.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

_MAGIC = 0x5EED << 40
_KINDS = ("all", "window", "chunk")


@dataclass(frozen=True, slots=True)
class MaskPattern:
    """Causal attention, perhaps over the `window` latest keys only, or within chunks of `chunk` tokens."""

    window: int | None = None
    chunk: int | None = None

    def tensor(self, queries: int, keys: int, device: torch.device | str) -> Tensor:
        """The pattern as a mask, int64 [1, 1, queries, keys]."""
        kind, size = (1, self.window) if self.window else (2, self.chunk) if self.chunk else (0, 0)
        return torch.full((1, 1, queries, keys), _MAGIC + (kind << 36) + int(size or 0), device=device)


def pattern_in(mask: Tensor) -> MaskPattern | None:
    """The pattern that a mask spells; None if it is not one of `MaskPattern.tensor`."""
    if mask.dtype != torch.int64 or not mask.numel():
        return None
    first = int(mask.flatten()[0])
    kind, size = (first - _MAGIC) >> 36, (first - _MAGIC) & ((1 << 36) - 1)
    if first < _MAGIC or kind >= len(_KINDS) or not bool((mask == first).all()):
        return None
    return MaskPattern(**{} if kind == 0 else {_KINDS[kind]: size})


def pattern_of(
    mask_function: Callable[..., Any], size: int | None, tokens: int, device: torch.device | str
) -> MaskPattern | None:
    """Finds which pattern a mask function of (batch, head, query, key) positions computes, by asking it.

    Args:
        mask_function: Transformers' function.
        size: The window or chunk it was made with, or None.
        tokens: Of the run it was made for. A function that knows these tokens only is asked about no more.
        device: Of the tensors that it may hold.

    Returns:
        None if it is none of the patterns.
    """
    candidates = [MaskPattern()]
    if size:
        candidates += [MaskPattern(window=size), MaskPattern(chunk=size)]
    for span in (3 * (size or 16) + 5, tokens):
        queries = torch.unique(torch.linspace(0, span - 1, 24, device=device).long())[:, None]
        keys = torch.arange(span, device=device)[None]
        zero = torch.zeros(1, 1, dtype=torch.long, device=device)
        try:
            seen = torch.as_tensor(mask_function(zero, zero, queries, keys)).expand(len(queries), span).bool()
        except IndexError:
            continue
        fitting = [p for p in candidates if torch.equal(seen, _visible(p, queries, keys))]
        return fitting[0] if len(fitting) == 1 else None  # Several: too few tokens to tell.
    return None


def _visible(pattern: MaskPattern, queries: Tensor, keys: Tensor) -> Tensor:
    seen = keys <= queries
    if pattern.window is not None:
        seen = seen & (keys > queries - pattern.window)
    if pattern.chunk is not None:
        seen = seen & (keys // pattern.chunk == queries // pattern.chunk)
    return seen
