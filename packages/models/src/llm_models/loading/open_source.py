"""Owns choosing the reader of a model's weights; knows the formats' names, not what is in them."""

from pathlib import Path
from typing import Literal

from llm_models.errors import PickleRefused
from llm_models.loading.gguf_models import GGUFSource
from llm_models.loading.pickle_files import PickleSource
from llm_models.loading.safetensors_files import SafetensorsSource
from llm_models.loading.shards import PICKLE, SAFETENSORS, has_weights
from llm_models.loading.source import TensorSource

Kind = Literal["safetensors", "gguf", "pickle"]


def open_source(path: Path, kind: Kind) -> TensorSource:
    """Opens the weights of a model and reads their headers.

    Args:
        path: The folder, or the GGUF file.
        kind: How the weights are stored.

    Raises:
        PickleRefused: There are only pickle files, and `kind` is another.
        WeightError: The files are at fault.
    """
    match kind:
        case "gguf":
            return GGUFSource(path)
        case "pickle":
            return PickleSource(path)
        case "safetensors":
            if not has_weights(path, SAFETENSORS) and has_weights(path, PICKLE):
                reason = (
                    f"holds only pickle files ({PICKLE.single}), which can hide code: convert them to "
                    "safetensors, or allow them with allow_pickle=True (only tensors are then read from them)"
                )
                raise PickleRefused(path, None, reason)
            return SafetensorsSource(path)
