"""The draw inside captured steps: all parameters on the device; knows nothing of models or of graphs."""

from __future__ import annotations

from typing import Protocol

from llm_kernels.ops import SamplingBatch, draw_tokens, sample
from torch import Tensor


class DrawColumns(Protocol):
    """What concerns the draw of R rows; see `HostDecode`."""

    @property
    def next_positions(self) -> Tensor:
        """int64[R]."""
        ...

    @property
    def seeds(self) -> Tensor:
        """int64[R]."""
        ...

    @property
    def temperature(self) -> Tensor:
        """float32[R]; 0 is greedy."""
        ...

    @property
    def top_p(self) -> Tensor:
        """float32[R]."""
        ...

    @property
    def min_p(self) -> Tensor:
        """float32[R]."""
        ...

    @property
    def top_k(self) -> Tensor:
        """int32[R]."""
        ...


def draw_rows(logits: Tensor, columns: DrawColumns, *, filters: bool) -> tuple[Tensor, Tensor]:
    """Draws one token a row, with nothing decided on the host.

    Args:
        logits: [R, V], float32 or a half format.
        columns: The rows' parameters.
        filters: Whether top-k, top-p and min-p are heeded.

    Returns:
        int64[R] tokens; bool[R], rows whose logits are broken.
    """
    if not filters:
        return draw_tokens(logits, columns.temperature, columns.seeds, columns.next_positions)
    drawn = sample(
        logits,
        SamplingBatch(
            temperature=columns.temperature,
            top_p=columns.top_p,
            min_p=columns.min_p,
            top_k=columns.top_k,
            seeds=columns.seeds,
            positions=columns.next_positions,
            max_top_k=logits.shape[1],
            any_top_p=True,
            any_min_p=True,
        ),
    )
    return drawn.tokens, drawn.faults
