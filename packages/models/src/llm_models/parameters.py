"""Owns the parameters of a model: their shapes on this rank, and the tensors that fill them.

Knows nothing about files. A parameter is filled from tensors under *canonical* names, such as
`layers.3.attention.query.weight`; `names.py` says where a checkpoint keeps those.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import Literal

import torch

from llm_models.errors import ShardingError

ABSENT = ""
"""The name of a part that no checkpoint holds: its rows are zero."""

ParameterKind = Literal["matrix", "bias", "norm", "other"]


@dataclass(frozen=True, slots=True)
class Shard:
    """This rank's place among the ranks that share each layer (tensor parallelism)."""

    rank: int = 0
    size: int = 1

    def part(self, total: int, field: str) -> int:
        """Size of this rank's share of `total` equal units.

        Raises:
            ShardingError: They cannot be shared out equally.
        """
        if total % self.size:
            raise ShardingError(field, f"{total} cannot be shared out equally among {self.size} ranks")
        return total // self.size

    def span(self, total: int, field: str) -> tuple[int, int]:
        """First and end of this rank's share of `total` units."""
        part = self.part(total, field)
        return self.rank * part, (self.rank + 1) * part

    def replicated_span(self, total: int, field: str) -> tuple[int, int]:
        """As `span`, but where there are fewer units than ranks, several ranks hold the same one."""
        if total < self.size and self.size % total == 0:
            first = self.rank * total // self.size
            return first, first + 1
        return self.span(total, field)


WHOLE = Shard()


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A canonical tensor of which rows (and columns) fill the next rows of a parameter.

    Attributes:
        name: Canonical name.
        shape: The whole tensor's shape.
        rows: First and end of what is taken along dimension 0; None: all.
        columns: The same along dimension 1.
    """

    name: str
    shape: tuple[int, ...]
    rows: tuple[int, int] | None = None
    columns: tuple[int, int] | None = None

    @property
    def taken(self) -> tuple[int, ...]:
        """Shape of what is taken."""
        shape = list(self.shape)
        for dim, span in enumerate((self.rows, self.columns)):
            if span is not None:
                shape[dim] = span[1] - span[0]
        return tuple(shape)


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """One tensor of the runtime. Its parts lie below each other.

    Attributes:
        name: Dotted name.
        shape: On this rank.
        parts: What fills it. The parts' rows add up to the product of the first `lead` dimensions.
        kind: What it is, for random weights.
        dtype: Number format; None: that of the model.
        lead: Dimensions that the parts' rows run over: 1, or 2 for stacked experts.
        shift: Added to every value when it is loaded (norms that scale by 1 + w).
        default: Fill value where the checkpoint does not hold the tensor; None: it must.
        quantizable: Whether it is the matrix of a linear layer, or of all experts' layers, which also runs
            on e4m3 weights and scales.
    """

    name: str
    shape: tuple[int, ...]
    parts: tuple[Part, ...]
    kind: ParameterKind = "matrix"
    dtype: torch.dtype | None = None
    lead: int = 1
    shift: float = 0.0
    default: float | None = None
    quantizable: bool = False

    def __post_init__(self) -> None:
        rows = sum(part.taken[0] for part in self.parts)
        tails = {part.taken[1:] for part in self.parts}
        if rows != prod(self.shape[: self.lead]) or tails != {self.shape[self.lead :]}:
            raise ValueError(
                f"parameter {self.name} of shape {self.shape} is not filled by its parts {self.parts}"
            )

    def below(self, prefix: str) -> "Parameter":
        """The same parameter with `prefix` before its name and its parts' names."""
        parts = tuple(
            replace(part, name=prefix + part.name) if part.name != ABSENT else part for part in self.parts
        )
        return replace(self, name=prefix + self.name, parts=parts)


def below(prefix: str, parameters: Iterable[Parameter]) -> Iterator[Parameter]:
    """Every parameter with `prefix` before its name."""
    return (parameter.below(prefix) for parameter in parameters)


def tensor(
    name: str,
    shape: tuple[int, ...],
    *,
    kind: ParameterKind = "other",
    dtype: torch.dtype | None = None,
    rows: tuple[int, int] | None = None,
    shift: float = 0.0,
    default: float | None = None,
) -> Parameter:
    """A parameter that is one canonical tensor of its name; `shape` is the whole, `rows` what is kept."""
    part = Part(name=name, shape=shape, rows=rows)
    return Parameter(
        name=name, shape=part.taken, parts=(part,), kind=kind, dtype=dtype, shift=shift, default=default
    )


def scale_names(weight: str) -> tuple[str, str]:
    """Names of the scales of an e4m3 weight and of its inputs, beside the weight's own `NAME.weight`."""
    module = weight.removesuffix(".weight")
    return f"{module}.weight_scale", f"{module}.input_scale"


@dataclass(frozen=True, slots=True)
class Rows:
    """Output features of a linear layer: how many in all, and which of them this rank computes."""

    total: int
    span: tuple[int, int] | None = None

    @property
    def taken(self) -> int:
        """How many this rank computes."""
        return self.total if self.span is None else self.span[1] - self.span[0]


def head_rows(count: int, heads: tuple[int, int], size: int) -> Rows:
    """The rows of `count` heads of `size`; this rank computes those from `heads[0]` to before `heads[1]`."""
    return Rows(count * size, (heads[0] * size, heads[1] * size))


def stacked_linear(
    name: str,
    parts: Mapping[str, Rows],
    columns: int,
    *,
    biases: tuple[str, ...] = (),
    quantizable: bool = True,
) -> Iterator[Parameter]:
    """A matrix whose output features are those of several linear layers, one below the other.

    Args:
        name: Of the parameter, without `.weight`.
        parts: Canonical name of each layer and its rows.
        columns: Input features.
        biases: The layers with a bias. Where some have one, the others' rows of the bias are 0.
        quantizable: Whether the block reads it as a `Linear` alone.
    """
    taken = [
        Part(name=f"{module}.weight", shape=(rows.total, columns), rows=rows.span)
        for module, rows in parts.items()
    ]
    height = sum(part.taken[0] for part in taken)
    yield Parameter(
        name=f"{name}.weight", shape=(height, columns), parts=tuple(taken), quantizable=quantizable
    )
    if biases:
        yield Parameter(
            name=f"{name}.bias",
            shape=(height,),
            kind="bias",
            parts=tuple(
                Part(
                    name=f"{module}.bias" if module in biases else ABSENT,
                    shape=(rows.total,),
                    rows=rows.span,
                )
                for module, rows in parts.items()
            ),
        )


def linear(
    name: str,
    rows: int,
    columns: int,
    *,
    bias: bool = False,
    taken_rows: tuple[int, int] | None = None,
    taken_columns: tuple[int, int] | None = None,
    quantizable: bool = True,
) -> Iterator[Parameter]:
    """One linear layer [rows, columns], of which this rank keeps the given rows or columns.

    The bias follows the rows; a layer cut along its columns has the whole bias. `quantizable`: whether the
    block reads the matrix as a `Linear` (or `SummedLinear`) alone.
    """
    part = Part(name=f"{name}.weight", shape=(rows, columns), rows=taken_rows, columns=taken_columns)
    yield Parameter(name=f"{name}.weight", shape=part.taken, parts=(part,), quantizable=quantizable)
    if bias:
        yield tensor(f"{name}.bias", (rows,), kind="bias", rows=taken_rows)
