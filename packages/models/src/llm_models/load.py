"""Owns building a decoder from a model's files; knows nothing about serving it."""

from typing import Literal

import torch
from torch import Tensor

from llm_models.decoder import Decoder
from llm_models.errors import ConfigError
from llm_models.files import ModelFiles
from llm_models.loading.assign import check_tensors, copy_tensors
from llm_models.loading.dummy import fill_random
from llm_models.loading.gguf_models import GGUFSource
from llm_models.loading.safetensors_files import SafetensorsSource
from llm_models.loading.source import TensorSource
from llm_models.parameters import ParameterSpec, expected_tensors, parameter_specs
from llm_models.registry import spec_for
from llm_models.spec import DecoderSpec

LoadFormat = Literal["auto", "dummy"]
_DTYPES = (torch.float32, torch.float16, torch.bfloat16)


def load_model(
    files: ModelFiles,
    *,
    dtype: torch.dtype,
    device: torch.device | str,
    load_format: LoadFormat = "auto",
    progress: bool = False,
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

    Raises:
        UnknownArchitecture: No spec for this architecture.
        ConfigError: The config, `dtype` or `load_format` is at fault.
        WeightError: The weight files are at fault.
    """
    if dtype not in _DTYPES:
        raise ConfigError("dtype", f"{dtype} is none of {', '.join(map(str, _DTYPES))}")
    if load_format not in ("auto", "dummy"):
        raise ConfigError("load_format", f"{load_format!r} is neither 'auto' nor 'dummy'")
    spec = spec_for(files.config)
    specs = parameter_specs(spec)
    if load_format == "dummy":
        parameters = _allocate(specs, dtype, device)
        fill_random(parameters, specs)
        return Decoder(spec, parameters)
    source: TensorSource = GGUFSource(files.path) if files.kind == "gguf" else SafetensorsSource(files.path)
    expected = expected_tensors(specs)
    check_tensors(expected, source, harmless=_harmless(spec))
    parameters = _allocate(specs, dtype, device)
    copy_tensors(expected, source, parameters, progress=progress)
    return Decoder(spec, parameters)


def _allocate(
    specs: tuple[ParameterSpec, ...], dtype: torch.dtype, device: torch.device | str
) -> dict[str, Tensor]:
    return {spec.name: torch.empty(spec.shape, dtype=dtype, device=device) for spec in specs}


def _harmless(spec: DecoderSpec) -> tuple[str, ...]:
    # A tied head is often saved a second time.
    tied_head = (rf"{spec.names.head}\.weight",) if spec.embedding.tied else ()
    return spec.names.harmless + tied_head
