"""Owns accounting for every tensor of a checkpoint and copying it into place; knows nothing about formats."""

import re
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed

from torch import Tensor
from tqdm import tqdm

from llm_models.errors import MissingTensor, UnexpectedTensor, WrongShape
from llm_models.loading.source import TensorSource
from llm_models.parameters import Slot

# Copying is bound by memory and page faults: more threads than this bring nothing.
_THREADS = 4


def check_tensors(expected: Mapping[str, Slot], source: TensorSource, *, harmless: Sequence[str]) -> None:
    """Compares the names and shapes in the files with what the model needs, before anything is copied.

    Args:
        expected: The needed tensors by name.
        source: The files.
        harmless: Regular expressions of tensors that may be there without being needed.

    Raises:
        MissingTensor: A needed tensor is in no file.
        UnexpectedTensor: A file holds a tensor that is neither needed nor harmless.
        WrongShape: A tensor's shape is another than the one needed.
    """
    found = source.tensors
    missing = [name for name in expected if name not in found]
    if missing:
        raise MissingTensor(source.root, missing[0], f"is missing from the weights{_others(missing)}")
    known = re.compile("|".join(f"(?:{pattern})" for pattern in harmless) or r"(?!)")
    unexpected = [name for name in found if name not in expected and not known.fullmatch(name)]
    if unexpected:
        where = found[unexpected[0]].file
        raise UnexpectedTensor(where, unexpected[0], f"has no place in this model{_others(unexpected)}")
    for name, slot in expected.items():
        info = found[name]
        if info.shape != slot.shape:
            reason = f"has shape {list(info.shape)}, the config asks for {list(slot.shape)}"
            raise WrongShape(info.file, name, reason)


def copy_tensors(
    expected: Mapping[str, Slot], source: TensorSource, parameters: Mapping[str, Tensor], *, progress: bool
) -> None:
    """Copies every expected tensor straight into its rows of its parameter.

    Raises:
        WeightError: A tensor cannot be read; the parameters are then partly filled.
    """

    def copy(item: tuple[str, Slot]) -> None:
        name, slot = item
        rows = parameters[slot.parameter][slot.start : slot.start + slot.shape[0]]
        source.copy_into(name, rows)

    with (
        ThreadPoolExecutor(_THREADS, thread_name_prefix="load-weights") as pool,
        tqdm(total=len(expected), desc="Loading weights", unit="tensor", disable=not progress) as bar,
    ):
        copies = [pool.submit(copy, item) for item in expected.items()]
        try:
            for done in as_completed(copies):
                done.result()
                bar.update(1)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _others(names: Sequence[str]) -> str:
    return f" (and {len(names) - 1} more)" if len(names) > 1 else ""
