"""Owns accounting for every tensor of a checkpoint and copying it into place; knows nothing about formats."""

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor
from tqdm import tqdm

from llm_models.errors import MissingTensor, UnexpectedTensor, WrongShape
from llm_models.loading.source import TensorInfo, TensorSource
from llm_models.names import NameIndex, Names, Source, fill_in
from llm_models.parameters import ABSENT, Parameter, Part

# Tensors under way at a time; large ones are read in pieces by further threads of the source.
_THREADS = 8


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
    """

    parameter: str
    start: int
    lead: int
    part: Part
    source: Source
    rows: tuple[int, ...]
    shift: float

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


def place_tensors(
    parameters: Sequence[Parameter], names: Names, source: TensorSource, *, harmless: Sequence[str] = ()
) -> Mapping[str, list[Placement]]:
    """Finds a place for every tensor in the files and a tensor for every place, before anything is copied.

    Args:
        parameters: What is to be filled.
        names: The checkpoint's names.
        source: The files.
        harmless: Canonical names of tensors that may be there without being needed.

    Returns:
        By checkpoint tensor, what it fills.

    Raises:
        MissingTensor: A needed tensor is in no file.
        UnexpectedTensor: A file holds a tensor that is neither needed nor harmless.
        WrongShape: A tensor's shape is another than the one needed.
    """
    index = NameIndex(names)
    known = {place.tensor for name in harmless for place in index.sources(name)}
    shapes = {part.name: part.shape for parameter in parameters for part in parameter.parts}
    placed: dict[str, list[Placement]] = {}
    missing: list[str] = []
    for placement in _placements(parameters, index, source, shapes, missing):
        placed.setdefault(placement.source.tensor, []).append(placement)
    if missing:
        raise MissingTensor(source.root, missing[0], f"is missing from the weights{_others(missing)}")
    known.update(placed)
    unexpected = [name for name in source.tensors if name not in known and not index.harmless(name)]
    if unexpected:
        where = source.tensors[unexpected[0]].file
        raise UnexpectedTensor(where, unexpected[0], f"has no place in this model{_others(unexpected)}")
    for name, placements in placed.items():
        _check_shape(source.tensors[name], placements)
    return placed


def copy_tensors(
    placed: Mapping[str, list[Placement]],
    source: TensorSource,
    parameters: Mapping[str, Tensor],
    *,
    progress: bool,
) -> None:
    """Copies every placed tensor straight into its rows of its parameters.

    Raises:
        WeightError: A tensor cannot be read; the parameters are then partly filled.
    """

    def copy(item: tuple[str, list[Placement]]) -> int:
        name = item[0]
        placements = [placement for placement in item[1] if placement.part.taken[0]]
        if not placements:  # It belongs to other ranks.
            return source.tensors[name].size
        first = placements[0]
        if len(placements) == 1 and first.is_whole:
            destination = first.destination(parameters)
            source.copy_into(name, destination.view(source.tensors[name].shape))
            if first.shift:
                destination += first.shift
            return source.tensors[name].size
        whole = source.read(name)
        for placement in placements:
            destination = placement.destination(parameters)
            source.copy_view(name, placement.take(whole), destination)
            if placement.shift:
                destination += placement.shift
        return source.tensors[name].size

    size = sum(source.tensors[name].size for name in placed)

    with (
        ThreadPoolExecutor(_THREADS, thread_name_prefix="load-weights") as pool,
        tqdm(
            total=size,
            desc="Loading weights",
            unit="B",
            unit_scale=True,
            unit_divisor=1024,
            disable=not progress,
        ) as bar,
    ):
        copies = [pool.submit(copy, item) for item in placed.items()]
        try:
            for done in as_completed(copies):
                bar.update(done.result())
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _placements(
    parameters: Sequence[Parameter],
    index: NameIndex,
    source: TensorSource,
    shapes: Mapping[str, tuple[int, ...]],
    missing: list[str],
) -> Iterator[Placement]:
    for parameter in parameters:
        start = 0
        for part in parameter.parts:
            found = None if part.name == ABSENT else _find(part.name, index, source)
            if found is not None:
                yield Placement(
                    parameter=parameter.name,
                    start=start,
                    lead=parameter.lead,
                    part=part,
                    source=found,
                    rows=_sibling_rows(found, part, shapes),
                    shift=parameter.shift,
                )
            elif part.name != ABSENT and parameter.default is None:
                places = index.sources(part.name)
                missing.append(places[0].tensor if places else part.name)
            start += part.taken[0]


def _find(canonical: str, index: NameIndex, source: TensorSource) -> Source | None:
    return next((place for place in index.sources(canonical) if place.tensor in source.tensors), None)


def _sibling_rows(found: Source, part: Part, shapes: Mapping[str, tuple[int, ...]]) -> tuple[int, ...]:
    if len(found.fused.targets) == 1:
        return (part.shape[0],)
    return tuple(shapes.get(fill_in(name, part.name), (0,))[0] for name in found.siblings)


def _check_shape(info: TensorInfo, placements: Sequence[Placement]) -> None:
    whole = torch.empty(info.shape, device="meta")
    for placement in placements:
        try:
            placement.take(whole)
        except (ValueError, RuntimeError, IndexError) as error:
            wanted = f"the config asks for {list(placement.part.shape)}"
            part = "" if placement.is_whole else f" for its part {placement.part.name} ({error})"
            raise WrongShape(info.file, info.name, f"has shape {list(info.shape)}, {wanted}{part}") from error


def _is_same_but_for_layout(found: Sequence[int], wanted: Sequence[int]) -> bool:
    """Convolutions are stored with a dimension of size 1, parameters of heads with a dimension of heads."""
    is_flattened = len(found) == len(wanted) + 1 and (prod(found[:2]), *found[2:]) == tuple(wanted)
    return is_flattened or _without_ones(found) == _without_ones(wanted)


def _without_ones(shape: Sequence[int]) -> tuple[int, ...]:
    return tuple(size for size in shape if size != 1)


def _others(names: Sequence[str]) -> str:
    return f" (and {len(names) - 1} more)" if len(names) > 1 else ""
