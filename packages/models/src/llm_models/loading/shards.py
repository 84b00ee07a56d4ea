"""Owns which weight files a checkpoint folder has, and what its index promises; knows no tensor formats."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llm_models.errors import CorruptFile, DuplicateTensor, MissingShard, MissingTensor


@dataclass(frozen=True, slots=True)
class FileNames:
    """What the weight files of one format are called: one file for all, or the index of several."""

    single: str
    index: str


SAFETENSORS = FileNames("model.safetensors", "model.safetensors.index.json")
PICKLE = FileNames("pytorch_model.bin", "pytorch_model.bin.index.json")


def has_weights(folder: Path, names: FileNames) -> bool:
    """Whether the folder holds weights under these names."""
    return (folder / names.single).is_file() or (folder / names.index).is_file()


def weight_files(folder: Path, names: FileNames) -> Mapping[Path, frozenset[str]]:
    """The weight files of a folder, each with the tensors that the index places in it.

    One file for all wins over an index, as it does in transformers; it comes with no promises.

    Raises:
        MissingShard: There are no weights, or a file that the index names is not there.
        CorruptFile: The index makes no sense.
        DuplicateTensor: The index lists a tensor twice.
    """
    if (folder / names.single).is_file():
        return {folder / names.single: frozenset()}
    index = folder / names.index
    if not index.is_file():
        raise MissingShard(folder, None, f"holds neither {names.single} nor {names.index}")
    shards: dict[Path, set[str]] = {}
    for tensor, name in _weight_map(index):
        if not isinstance(name, str) or name in {"", ".", ".."} or Path(name).name != name:
            raise CorruptFile(index, tensor, f"is placed in {name!r}, which is not a file name")
        shards.setdefault(folder / name, set()).add(tensor)
    for file in shards:
        if not file.is_file():
            raise MissingShard(file, None, f"is named by {names.index} but is not there")
    return {file: frozenset(tensors) for file, tensors in sorted(shards.items())}


def merge_shards(
    promised: Mapping[Path, frozenset[str]], held: Mapping[Path, frozenset[str]]
) -> Mapping[str, Path]:
    """The file of every tensor, after comparing what files should hold with what they do hold.

    Raises:
        DuplicateTensor: A tensor is in two files.
        MissingTensor: A file lacks a tensor that the index places in it.
    """
    homes: dict[str, Path] = {}
    for file, names in held.items():
        for name in sorted(names):
            if name in homes:
                raise DuplicateTensor(file, name, f"is in {homes[name].name} too")
            homes[name] = file
    for file, names in promised.items():
        for name in sorted(names - held[file]):
            where = f"in {homes[name].name}" if name in homes else "in no file"
            raise MissingTensor(file, name, f"is placed in this file by the index, but is {where}")
    return homes


def _weight_map(index: Path) -> list[tuple[str, Any]]:
    try:
        content = json.loads(index.read_bytes(), object_pairs_hook=_Pairs)
    except ValueError as error:
        raise CorruptFile(index, None, f"is not valid JSON ({error})") from error
    weight_map = dict(content).get("weight_map") if isinstance(content, _Pairs) else None
    if not isinstance(weight_map, _Pairs) or not weight_map:
        raise CorruptFile(index, None, "has no weight_map")
    places: dict[str, Any] = {}
    for name, file in weight_map:
        if name in places:
            raise DuplicateTensor(index, name, f"is listed twice: in {places[name]!r} and in {file!r}")
        places[name] = file
    return list(weight_map)


class _Pairs(list[tuple[str, Any]]):
    """A JSON object as its items, so that what is listed twice shows."""
