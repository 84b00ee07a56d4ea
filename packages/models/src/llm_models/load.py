"""Owns building a model from its files; knows nothing about serving it."""

from collections.abc import Sequence
from typing import Literal

import torch
from llm_distributed import DeviceMesh
from torch import Tensor

from llm_models.architectures.pooled_decoders import embedder
from llm_models.config import architecture_name
from llm_models.decoder import Decoder, decoder_parameters
from llm_models.encoder_decoder import EncoderDecoder, encoder_decoder_parameters
from llm_models.errors import ConfigError, UnknownArchitecture, UnsupportedConfig
from llm_models.fallback import fallback_verdict, load_fallback
from llm_models.files import ModelFiles
from llm_models.loading.assign import copy_tensors, place_tensors, plan_weights
from llm_models.loading.dummy import fill_random
from llm_models.loading.open_source import open_source
from llm_models.loading.scaled import imagined_parameters
from llm_models.model import Model
from llm_models.names import Names
from llm_models.parameters import ABSENT, Parameter, Shard
from llm_models.pooling import PooledSpec, PoolingModel, pooled_parameters
from llm_models.quantization import Quantization, Scheme, read_scheme
from llm_models.registry import (
    encoder_decoder_spec_for,
    gives_vectors,
    is_native,
    known_architectures,
    pooled_spec_for,
    spec_for,
)
from llm_models.sentence_transformers import DenseFolder, read_sentence_modules
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
    mesh: DeviceMesh | None = None,
    trust_remote_code: bool = False,
    quantization: Quantization | None = None,
) -> Model:
    """Builds the language model that `files` describe, with its weights on `device`.

    An architecture with a spec becomes a `Decoder`: names and shapes of all tensors are checked before memory
    for the model is taken; each tensor is then cast and copied into its place on its own, so the model is
    never in memory twice. Others go through the transformers fallback, where that serves them.

    Args:
        files: From `resolve`.
        dtype: Of the weights: float32, float16 or bfloat16.
        device: Where they go.
        load_format: `auto` reads the files' weights; `dummy` fills in seeded random numbers instead.
        progress: Show a bar on standard error.
        mesh: The ranks that share the layers (axis `tp`); each reads only its own slices.
        trust_remote_code: Run model code that the checkpoint holds, in the fallback.
        quantization: `fp8`: linear layers get e4m3 weights with a scale an output, quantized tensor by tensor
            while they are loaded. Checkpoints that are quantized already load as they are, with or without.

    Raises:
        UnknownArchitecture: No spec for this architecture, and the fallback does not serve it.
        ConfigError: The config, `dtype` or `load_format` is at fault.
        ShardingError: The model cannot be shared out among the ranks.
        WeightError: The weight files are at fault.
    """
    _check_arguments(dtype, load_format)
    if not is_native(architecture_name(files.config)):
        if quantization is not None:
            raise UnsupportedConfig("quantization", "models of the transformers fallback are not quantized")
        return _load_fallback(files, dtype, device, load_format, mesh, trust_remote_code)
    spec, scheme = spec_for(files.config), read_scheme(files.config, quantization)
    wanted = decoder_parameters(spec, _shard(mesh))
    parameters = _load(files, spec, wanted, dtype, device, load_format, scheme, progress=progress)
    return Decoder(spec, parameters, mesh)


def load_encoder_decoder(
    files: ModelFiles,
    *,
    dtype: torch.dtype,
    device: torch.device | str,
    load_format: LoadFormat = "auto",
    progress: bool = False,
    mesh: DeviceMesh | None = None,
    quantization: Quantization | None = None,
) -> EncoderDecoder:
    """Builds the encoder and decoder that `files` describe; arguments and errors are `load_model`'s."""
    _check_arguments(dtype, load_format)
    spec = encoder_decoder_spec_for(files.config)
    wanted = encoder_decoder_parameters(spec, _shard(mesh))
    scheme = read_scheme(files.config, quantization)
    parameters = _load(files, spec.decoder, wanted, dtype, device, load_format, scheme, progress=progress)
    return EncoderDecoder(spec, parameters, mesh)


def load_pooling_model(
    files: ModelFiles,
    *,
    dtype: torch.dtype,
    device: torch.device | str,
    load_format: LoadFormat = "auto",
    progress: bool = False,
    mesh: DeviceMesh | None = None,
    quantization: Quantization | None = None,
) -> PoolingModel:
    """Builds the embedder or classifier that `files` describe; arguments and errors are `load_model`'s."""
    _check_arguments(dtype, load_format)
    spec = pooled_spec_of(files)
    modules = read_sentence_modules(files.path)
    dense = () if modules is None or spec.labels else modules.dense
    outside = {f"{folder.layer.name}.{leaf}" for folder in dense for leaf in ("weight", "bias")}
    wanted = pooled_parameters(spec, _shard(mesh))
    own = [parameter for parameter in wanted if parameter.name not in outside]
    scheme = read_scheme(files.config, quantization)
    parameters = _load(files, spec.body, own, dtype, device, load_format, scheme, progress=progress)
    for folder in dense:
        layer = [one for one in wanted if one.name.rpartition(".")[0] == folder.layer.name]
        parameters |= _load_dense(folder, layer, dtype, device, load_format)
    return PoolingModel(spec, parameters, mesh)


def pooled_spec_of(files: ModelFiles) -> PooledSpec:
    """The spec of an embedder or classifier, with what sentence-transformers' files beside it say.

    Raises:
        UnknownArchitecture: Nothing is registered for the first of `architectures`.
        ConfigError: The config or a file of sentence-transformers is at fault.
    """
    spec, modules = pooled_spec_for(files.config), read_sentence_modules(files.path)
    return spec if modules is None else modules.applied_to(spec)


def is_pooling(files: ModelFiles) -> bool:
    """Whether the model is meant to give vectors or scores of texts, not text.

    Raises:
        ConfigError: As `pooled_spec_of`.
    """
    return gives_vectors(files.config) or read_sentence_modules(files.path) is not None


def pooling_over(model: Model) -> PoolingModel:
    """A language model as an embedder, on the same weights.

    Raises:
        UnsupportedConfig: The model has blocks that do not run without a cache.
    """
    if not isinstance(model, Decoder):
        raise UnsupportedConfig("architectures", "a model of the transformers fallback gives no vectors")
    return PoolingModel(embedder(model.spec), {}, body=model)


def _check_arguments(dtype: torch.dtype, load_format: str) -> None:
    if dtype not in _DTYPES:
        raise ConfigError("dtype", f"{dtype} is none of {', '.join(map(str, _DTYPES))}")
    if load_format not in ("auto", "dummy"):
        raise ConfigError("load_format", f"{load_format!r} is neither 'auto' nor 'dummy'")


def _shard(mesh: DeviceMesh | None) -> Shard:
    return Shard() if mesh is None else Shard(mesh.rank("tp"), mesh.size("tp"))


def _load_fallback(
    files: ModelFiles,
    dtype: torch.dtype,
    device: torch.device | str,
    load_format: LoadFormat,
    mesh: DeviceMesh | None,
    trust_remote_code: bool,
) -> Model:
    name = architecture_name(files.config)
    verdict = fallback_verdict(files.config, trust_remote_code=trust_remote_code)
    if verdict.kind == "unsupported":
        raise UnknownArchitecture(name, known_architectures(), fallback=verdict.reason)
    return load_fallback(
        files,
        dtype=dtype,
        device=device,
        load_format=load_format,
        trust_remote_code=trust_remote_code,
        mesh=mesh,
    )


def _load(
    files: ModelFiles,
    spec: DecoderSpec,
    wanted: Sequence[Parameter],
    dtype: torch.dtype,
    device: torch.device | str,
    load_format: LoadFormat,
    scheme: Scheme | None,
    *,
    progress: bool,
) -> dict[str, Tensor]:
    if load_format == "dummy":
        if scheme is not None:
            wanted = imagined_parameters(wanted, spec.names, scheme)
        parameters = _allocate(wanted, dtype, device)
        fill_random(parameters, wanted, dtype=dtype, scheme=scheme)
        return _settled(parameters, scheme)
    source = open_source(files.path, files.kind)
    plan = plan_weights(wanted, spec, source, scheme)
    parameters = _allocate(plan.parameters, dtype, device)
    copy_tensors(plan.placed, source, parameters, progress=progress, scheme=scheme)
    for scales in plan.scales:
        scales.fill(source, parameters)
    return _settled(parameters, scheme)


def _settled(parameters: dict[str, Tensor], scheme: Scheme | None) -> dict[str, Tensor]:
    """The same; memory of what was on its way to e4m3 goes back to the device."""
    if scheme is not None and any(parameter.is_cuda for parameter in parameters.values()):
        torch.cuda.empty_cache()
    return parameters


def _load_dense(
    folder: DenseFolder,
    wanted: Sequence[Parameter],
    dtype: torch.dtype,
    device: torch.device | str,
    load_format: LoadFormat,
) -> dict[str, Tensor]:
    parameters = _allocate(wanted, dtype, device)
    if load_format == "dummy":
        fill_random(parameters, wanted, dtype=dtype)
        return parameters
    source = open_source(folder.path, "safetensors")
    names = Names(top={"linear": folder.layer.name}, layer="", inside={})
    copy_tensors(place_tensors(wanted, names, source), source, parameters, progress=False)
    return parameters


def _allocate(
    wanted: Sequence[Parameter], dtype: torch.dtype, device: torch.device | str
) -> dict[str, Tensor]:
    """Memory for the parameters, untouched; what no checkpoint need hold is filled with its default or 0."""
    allocated = {}
    for parameter in wanted:
        tensor = torch.empty(parameter.shape, dtype=parameter.dtype or dtype, device=device)
        if parameter.default is not None or any(part.name == ABSENT for part in parameter.parts):
            tensor.fill_(parameter.default or 0.0)
        allocated[parameter.name] = tensor
    return allocated
