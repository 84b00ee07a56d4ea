"""Owns building a decoder from a model's files; knows nothing about serving it."""

from collections.abc import Sequence
from typing import Literal

import torch
from llm_distributed import DeviceMesh
from torch import Tensor

from llm_models.decoder import Decoder, decoder_parameters
from llm_models.errors import ConfigError
from llm_models.files import ModelFiles
from llm_models.loading.assign import copy_tensors, place_tensors
from llm_models.loading.dummy import fill_random
from llm_models.loading.open_source import open_source
from llm_models.parameters import Parameter, Shard
from llm_models.registry import spec_for

LoadFormat = Literal["auto", "dummy"]
_DTYPES = (torch.float32, torch.float16, torch.bfloat16)


def load_model(
    files: ModelFiles,
    *,
    dtype: torch.dtype,
    device: torch.device | str,
    load_format: LoadFormat = "auto",
    progress: bool = False,
    mesh: DeviceMesh | None = None,
) -> Decoder:
    """Builds the decoder that `files` describe, with its weights on `device`.

    Names and shapes of all tensors are checked before memory for the model is taken. Each tensor is then cast
    and copied into its place on its own, so the model is never in memory twice.

    Args:
        files: From `resolve`.
        dtype: Of the weights: float32, float16 or bfloat16.
        device: Where they go.
        load_format: `auto` reads the files' weights; `dummy` fills in seeded random numbers instead.
        progress: Show a bar on standard error.
        mesh: The ranks that share the layers (axis `tp`); each reads only its own slices.

    Raises:
        UnknownArchitecture: No spec for this architecture.
        ConfigError: The config, `dtype` or `load_format` is at fault.
        ShardingError: The model cannot be shared out among the ranks.
        WeightError: The weight files are at fault.
    """
    if dtype not in _DTYPES:
        raise ConfigError("dtype", f"{dtype} is none of {', '.join(map(str, _DTYPES))}")
    if load_format not in ("auto", "dummy"):
        raise ConfigError("load_format", f"{load_format!r} is neither 'auto' nor 'dummy'")
    spec = spec_for(files.config)
    shard = Shard() if mesh is None else Shard(mesh.rank("tp"), mesh.size("tp"))
    wanted = decoder_parameters(spec, shard)
    if load_format == "dummy":
        parameters = _allocate(wanted, dtype, device)
        fill_random(parameters, wanted)
        return Decoder(spec, parameters, mesh)
    source = open_source(files.path, files.kind)
    # A tied head is often saved a second time.
    placed = place_tensors(wanted, spec.names, source, harmless=("head.weight",) if spec.head.tied else ())
    parameters = _allocate(wanted, dtype, device)
    copy_tensors(placed, source, parameters, progress=progress)
    return Decoder(spec, parameters, mesh)


def _allocate(
    wanted: Sequence[Parameter], dtype: torch.dtype, device: torch.device | str
) -> dict[str, Tensor]:
    """Memory for the parameters; what no checkpoint need hold is filled with its default, else with 0."""
    allocated = {}
    for parameter in wanted:
        fill = 0.0 if parameter.default is None else parameter.default
        allocated[parameter.name] = torch.full(
            parameter.shape, fill, dtype=parameter.dtype or dtype, device=device
        )
    return allocated
