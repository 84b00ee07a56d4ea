"""Owns loading a checkpoint through transformers; knows nothing about native specs or serving."""

import contextlib
import warnings
from collections.abc import Iterator
from typing import Any, Literal

import torch
from llm_distributed import DeviceMesh
from safetensors import SafetensorError

from llm_models.config import architecture_name
from llm_models.errors import (
    ConfigError,
    CorruptFile,
    MissingShard,
    MissingTensor,
    UnexpectedTensor,
    UnsupportedConfig,
    WrongShape,
)
from llm_models.fallback.choosing import choose
from llm_models.fallback.models import FallbackModel
from llm_models.fallback.positions import max_positions
from llm_models.fallback.sharding import shard_by_plan
from llm_models.fallback.transformers_classes import causal_class, remote_name
from llm_models.fallback.verdict import fallback_verdict, verdict_of_class
from llm_models.files import ModelFiles


def load_fallback(
    files: ModelFiles,
    *,
    dtype: torch.dtype,
    device: torch.device | str,
    load_format: Literal["auto", "dummy"] = "auto",
    trust_remote_code: bool = False,
    mesh: DeviceMesh | None = None,
) -> FallbackModel:
    """Loads a model that has no native spec, with transformers' module for it.

    Transformers makes the module without memory for weights and reads each tensor of the safetensors files
    straight to `device`. Then the paged run is compared with the plain one; see `FallbackModel.verdict` for
    what came out.

    Args:
        files: From `resolve`; a folder with safetensors files.
        dtype: Of the weights.
        device: Where they go.
        load_format: `auto` reads the files' weights; `dummy` fills in seeded random numbers instead.
        trust_remote_code: Run model code that the checkpoint holds.
        mesh: The ranks that share the layers (axis `tp`) by the class's own plan. Each reads the whole
            checkpoint into host memory first.

    Raises:
        ShardingError: The class has no such plan, or sizes do not divide.
        UnsupportedConfig: The fallback cannot serve this config; the message says why.
        WeightError: The weight files are at fault.
    """
    verdict = fallback_verdict(files.config, trust_remote_code=trust_remote_code)
    if verdict.kind == "unsupported":
        raise UnsupportedConfig(
            "architectures", f"the transformers fallback does not serve it: {verdict.reason}"
        )
    if files.kind == "gguf":
        raise UnsupportedConfig("architectures", "the transformers fallback reads no GGUF files")
    name = architecture_name(files.config)
    with _quiet():
        config = _config(files, trust_remote_code)
        found = causal_class(name) or _remote_class(files)
        shared = mesh is not None and mesh.size("tp") > 1
        where = "cpu" if shared else device
        if load_format == "dummy":
            model = _random(found, config, dtype, where)
        else:
            model = _read(found, config, files, dtype, where)
        if mesh is not None and shared:
            shard_by_plan(model, mesh)
            model.to(device)
    model.requires_grad_(False).eval()
    if causal_class(name) is None:
        verdict = verdict_of_class(type(model))
    return choose(model, name, verdict, max_positions(config))


def _config(files: ModelFiles, trust_remote_code: bool) -> Any:
    from transformers import AutoConfig

    try:
        return AutoConfig.from_pretrained(
            str(files.path), trust_remote_code=trust_remote_code, local_files_only=True
        )
    except (ValueError, KeyError, TypeError, OSError) as error:
        raise ConfigError("config.json", f"transformers refuses it: {_line(error)}") from error


def _remote_class(files: ModelFiles) -> Any:
    """The class in the checkpoint's own code, which is imported."""
    from transformers.dynamic_module_utils import get_class_from_dynamic_module

    reference = remote_name(files.config)
    assert reference is not None  # Else the verdict is `unsupported`.
    try:
        return get_class_from_dynamic_module(reference, str(files.path), local_files_only=True)
    except (OSError, ImportError, AttributeError) as error:
        raise UnsupportedConfig("auto_map", f"{reference} cannot be imported: {_line(error)}") from error


def _read(found: Any, config: Any, files: ModelFiles, dtype: torch.dtype, device: Any) -> Any:
    try:
        model, info = found.from_pretrained(
            str(files.path),
            config=config,
            dtype=dtype,
            device_map={"": torch.device(device)},
            local_files_only=True,
            use_safetensors=True,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # They are reported below, with their names.
        )
    except SafetensorError as error:
        raise CorruptFile(files.path, None, f"cannot be read ({_line(error)})") from error
    except OSError as error:
        raise MissingShard(files.path, None, _line(error)) from error
    _account(info, files)
    return model


def _account(info: dict[str, Any], files: ModelFiles) -> None:
    for name, found, needed in sorted(info.get("mismatched_keys", ())):
        reason = f"has shape {list(found)}, the config asks for {list(needed)}"
        raise WrongShape(files.path, name, reason)
    for name in sorted(info.get("missing_keys", ())):
        raise MissingTensor(files.path, name, "is missing from the weights")
    for name in sorted(info.get("unexpected_keys", ())):
        raise UnexpectedTensor(files.path, name, "has no place in this model")
    for message in info.get("error_msgs", ()):
        raise CorruptFile(files.path, None, " ".join(str(message).split())[:300])


def _random(found: Any, config: Any, dtype: torch.dtype, device: Any) -> Any:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return found._from_config(config, dtype=dtype).to(device)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keeps transformers' reports and bars away: what matters is raised."""
    from transformers.utils import logging

    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:300]
