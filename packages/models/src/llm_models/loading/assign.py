"""Owns accounting for every tensor of a checkpoint and copying it into place; knows nothing about formats."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass

import torch
from torch import Tensor
from tqdm import tqdm

from llm_models.errors import MissingTensor, UnexpectedTensor, WrongShape
from llm_models.loading.cache_scales import HARMLESS, CacheScales, find_cache_scales
from llm_models.loading.placement import Placement
from llm_models.loading.scaled import ScaledCopy, quantized_parameters, scales_beside
from llm_models.loading.source import TensorInfo, TensorSource
from llm_models.names import NameIndex, Names, Source, fill_in
from llm_models.parameters import ABSENT, Parameter, Part
from llm_models.quantization import Scheme
from llm_models.spec import DecoderSpec

# Tensors under way at a time; large ones are read in pieces by further threads of the source.
_THREADS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a model keeps in memory, and what fills it.

    Attributes:
        parameters: With those that are e4m3 and all scales.
        placed: By checkpoint tensor, what it fills.
        scales: Those of a cache in e4m3.
    """

    parameters: Sequence[Parameter]
    placed: Mapping[str, list[Placement]]
    scales: Sequence[CacheScales]


def place_tensors(
    parameters: Sequence[Parameter],
    names: Names,
    source: TensorSource,
    *,
    harmless: Sequence[str] = (),
    beside: Collection[str] = (),
) -> Mapping[str, list[Placement]]:
    """Finds a place for every tensor in the files and a tensor for every place, before anything is copied.

    Args:
        parameters: What is to be filled.
        names: The checkpoint's names.
        source: The files.
        harmless: Canonical names of tensors that may be there without being needed.
        beside: Checkpoint names of tensors that belong to others (scales).

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
    known.update(placed, beside)
    unexpected = [name for name in source.tensors if name not in known and not index.harmless(name)]
    if unexpected:
        where = source.tensors[unexpected[0]].file
        raise UnexpectedTensor(where, unexpected[0], f"has no place in this model{_others(unexpected)}")
    for name, placements in placed.items():
        _check_shape(source.tensors[name], placements)
    return placed


def plan_weights(
    wanted: Sequence[Parameter], spec: DecoderSpec, source: TensorSource, scheme: Scheme | None
) -> Plan:
    """What a model keeps in memory, and which tensors fill it; reads headers (and names) only.

    Args:
        wanted: The parameters in the model's number format.
        spec: Of the model, or of its decoder or body.
        source: The files.
        scheme: How the model is quantized.

    Raises:
        WeightError: The files do not go with the model; see `place_tensors`, `quantized_parameters` and
            `find_cache_scales`.
    """
    # A tied head is often saved a second time.
    harmless = ("head.weight",) if spec.head.tied else ()
    names = spec.names.but(harmless=HARMLESS)
    beside = () if scheme is None else scales_beside(source)
    placed = place_tensors(wanted, names, source, harmless=harmless, beside=beside)
    scales: Sequence[CacheScales] = ()
    if scheme is None or scheme.has_cache_scales:
        scales = find_cache_scales(wanted, spec, placed, source)
    if scheme is not None:
        wanted = quantized_parameters(wanted, placed, source, scheme)
    return Plan(parameters=(*wanted, *(one.described() for one in scales)), placed=placed, scales=scales)


def copy_tensors(
    placed: Mapping[str, list[Placement]],
    source: TensorSource,
    parameters: Mapping[str, Tensor],
    *,
    progress: bool,
    scheme: Scheme | None = None,
) -> None:
    """Copies every placed tensor straight into its rows of its parameters.

    With a scheme, e4m3 weights and their scales are kept, made or undone on the way (see `scaled.py`).

    Raises:
        WeightError: A tensor cannot be read; the parameters are then partly filled.
    """
    scaled = None if scheme is None else ScaledCopy(source, parameters, scheme)

    def copy(item: tuple[str, list[Placement]]) -> int:
        name = item[0]
        placements = [placement for placement in item[1] if placement.part.taken[0]]
        if not placements:  # It belongs to other ranks.
            return source.tensors[name].size
        if scaled is not None and any(scaled.concerns(placement) for placement in placements):
            for placement in placements:
                scaled.fill(placement)
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
        for number, part in enumerate(parameter.parts):
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
                    index=number,
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


def _others(names: Sequence[str]) -> str:
    return f" (and {len(names) - 1} more)" if len(names) > 1 else ""
