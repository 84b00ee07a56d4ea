"""Owns which part of a checkpoint tensor fills which rows of a parameter; knows nothing about files.

Everything taken is a view: no data moves.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

from torch import Tensor

from llm_models.names import Source
from llm_models.parameters import Part


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """One part of a parameter and the checkpoint tensor that it comes from.

    Attributes:
        parameter: Name of the parameter.
        start: First of its rows (its leading dimensions taken as one).
        lead: Those leading dimensions.
        part: What is placed.
        source: Where it comes from.
        rows: Rows of everything that the checkpoint tensor holds.
        shift: Added to every value.
        index: Which of the parameter's parts it is.
    """

    parameter: str
    start: int
    lead: int
    part: Part
    source: Source
    rows: tuple[int, ...]
    shift: float
    index: int

    @property
    def is_whole(self) -> bool:
        """Whether the checkpoint tensor is the part, as it is."""
        fused = self.source.fused
        is_plain = len(fused.targets) == 1 and not fused.transposed and not fused.stacked
        return is_plain and self.part.taken == self.part.shape

    def take(self, whole: Tensor) -> Tensor:
        """The view of the checkpoint tensor that is the part.

        Raises:
            ValueError, RuntimeError, IndexError: The tensor's shape does not fit.
        """
        x = self.source.fused.take(whole, self.source.target, self.source.expert, self.rows)
        if x.shape != self.part.shape and _is_same_but_for_layout(x.shape, self.part.shape):
            x = x.reshape(self.part.shape)
        if x.shape != self.part.shape:
            raise ValueError(f"gives shape {list(x.shape)} where the config asks for {list(self.part.shape)}")
        if self.part.rows is not None:
            x = x[slice(*self.part.rows)]
        if self.part.columns is not None:
            x = x[:, slice(*self.part.columns)]
        return x

    def destination(self, parameters: Mapping[str, Tensor]) -> Tensor:
        """The rows of the parameter that are filled."""
        rows = parameters[self.parameter].flatten(0, self.lead - 1)
        return rows[self.start : self.start + self.part.taken[0]]


def _is_same_but_for_layout(found: Sequence[int], wanted: Sequence[int]) -> bool:
    """Convolutions are stored with a dimension of size 1, parameters of heads with a dimension of heads."""
    is_flattened = len(found) == len(wanted) + 1 and (prod(found[:2]), *found[2:]) == tuple(wanted)
    return is_flattened or _without_ones(found) == _without_ones(wanted)


def _without_ones(shape: Sequence[int]) -> tuple[int, ...]:
    return tuple(size for size in shape if size != 1)
