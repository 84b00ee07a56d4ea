"""Owns reading the folders that sentence-transformers writes: pooling, dense layers, normalisation, prompts.

Knows nothing about any architecture: these modules stand behind whatever body `config.json` describes.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from llm_models.activations import Activation
from llm_models.config import ConfigReader
from llm_models.errors import ConfigError, UnsupportedConfig
from llm_models.pooling import Dense, PooledSpec, PoolingKind

_POOLINGS: Mapping[str, PoolingKind] = {"cls": "cls", "mean": "mean", "lasttoken": "last", "max": "max"}
_FIELDS = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_lasttoken": "lasttoken",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
}
_ACTIVATIONS: Mapping[str, Activation | None] = {
    "Identity": None,
    "Tanh": "tanh",
    "GELU": "gelu",
    "ReLU": "relu",
    "SiLU": "silu",
    "Sigmoid": "sigmoid",
}


@dataclass(frozen=True, slots=True)
class DenseFolder:
    """A dense layer and where its weights are (`linear.weight`, `linear.bias`)."""

    layer: Dense
    path: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class SentenceModules:
    """What stands behind the body.

    Attributes:
        pooling: Which hidden states count.
        dense: Layers after pooling, in order.
        normalize: Whether vectors are scaled to length 1.
        max_tokens: Longest text; None: what the body takes.
        prompts: What callers may put before a text, by name.
        default_prompt: The name of the one that is meant when none is named.
    """

    pooling: PoolingKind
    dense: tuple[DenseFolder, ...] = ()
    normalize: bool = False
    max_tokens: int | None = None
    prompts: Mapping[str, str] = field(default_factory=dict)
    default_prompt: str | None = None

    def applied_to(self, spec: PooledSpec) -> PooledSpec:
        """`spec` with this pooling and these layers; one with labels stays as it is, but for the length."""
        limit = self.max_tokens
        if spec.labels:
            return replace(spec, max_tokens=limit)
        head = tuple(dense.layer for dense in self.dense)
        return replace(spec, pooling=self.pooling, head=head, normalize=self.normalize, max_tokens=limit)


def read_sentence_modules(folder: Path) -> SentenceModules | None:
    """What `modules.json` of a folder lists; None where there is none.

    Raises:
        UnsupportedConfig: A module, a pooling or an activation is not one of those done here.
        ConfigError: A file is malformed.
    """
    if not (folder / "modules.json").is_file():
        return None
    modules = _read(folder / "modules.json")
    if not isinstance(modules, list) or not all(isinstance(module, Mapping) for module in modules):
        raise ConfigError("modules.json", "must be a list of objects")
    pooling: PoolingKind | None = None
    dense: list[DenseFolder] = []
    normalize = False
    for position, module in enumerate(modules):
        kind, path = str(module.get("type", "")).rpartition(".")[2], str(module.get("path", ""))
        if kind == "Transformer" and position == 0 and not path:
            continue
        if kind == "Pooling" and pooling is None:
            pooling = _pooling(_object(folder / path / "config.json"))
        elif kind == "Dense" and pooling is not None and not normalize:
            dense.append(
                DenseFolder(_dense(_object(folder / path / "config.json"), len(dense)), folder / path)
            )
        elif kind == "Normalize" and pooling is not None:
            normalize = True
        elif kind != "Dropout":
            raise UnsupportedConfig(
                "modules.json", f"module {position}, {kind!r} in {path!r}, is not done here"
            )
    if pooling is None:
        raise UnsupportedConfig("modules.json", "lists no pooling")
    return _with_texts(folder, SentenceModules(pooling=pooling, dense=tuple(dense), normalize=normalize))


def _with_texts(folder: Path, modules: SentenceModules) -> SentenceModules:
    """With what is said about texts: their length and the prompts."""
    lengths = sorted(folder.glob("sentence_*_config.json"))
    limits = ConfigReader(_object(lengths[0]) if lengths else {})
    about = folder / "config_sentence_transformers.json"
    said = _object(about) if about.is_file() else {}
    prompts = said.get("prompts") or {}
    if not isinstance(prompts, Mapping):
        raise ConfigError("prompts", f"must be an object, not {prompts!r}")
    default = said.get("default_prompt_name")
    return replace(
        modules,
        max_tokens=limits.positive_int("max_seq_length") if limits.has("max_seq_length") else None,
        prompts={str(name): str(text) for name, text in prompts.items()},
        default_prompt=None if default is None else str(default),
    )


def _pooling(config: Mapping[str, Any]) -> PoolingKind:
    if isinstance(config.get("pooling_mode"), str):
        modes = [config["pooling_mode"]]
    else:
        modes = [mode for name, mode in _FIELDS.items() if config.get(name)]
    if len(modes) != 1:
        raise UnsupportedConfig("pooling_mode", f"must be one, not {', '.join(modes) or 'none'}")
    if modes[0] not in _POOLINGS:
        raise UnsupportedConfig("pooling_mode", f"{modes[0]!r} is none of {', '.join(_POOLINGS)}")
    if config.get("include_prompt") is False:
        raise UnsupportedConfig("include_prompt", "prompts cannot be left out of the pooling")
    return _POOLINGS[modes[0]]


def _dense(config: Mapping[str, Any], index: int) -> Dense:
    reader = ConfigReader(config)
    activation = reader.string("activation_function", "torch.nn.modules.activation.Tanh").rpartition(".")[2]
    if activation not in _ACTIVATIONS:
        raise UnsupportedConfig("activation_function", f"{activation!r} is none of {', '.join(_ACTIVATIONS)}")
    for name in ("module_input_name", "module_output_name"):
        if config.get(name) not in (None, "sentence_embedding"):
            raise UnsupportedConfig(name, f"{config[name]!r} is not sentence_embedding")
    return Dense(
        name=f"dense{index}",
        size=reader.positive_int("out_features"),
        bias=reader.boolean("bias", True),
        activation=_ACTIVATIONS[activation],
    )


def _object(path: Path) -> Mapping[str, Any]:
    content = _read(path)
    if not isinstance(content, Mapping):
        raise ConfigError(path.name, f"{path} must hold an object, not {type(content).__name__}")
    return content


def _read(path: Path) -> object:
    try:
        content: object = json.loads(path.read_bytes())
    except OSError as error:
        raise ConfigError(path.name, f"cannot read {path}: {error.strerror}") from error
    except ValueError as error:
        raise ConfigError(path.name, f"{path} is not valid JSON ({error})") from error
    return content
