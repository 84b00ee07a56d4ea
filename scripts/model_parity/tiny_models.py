"""Owns building tiny seeded transformers models, a case or more a class; knows nothing of llm_models."""

import contextlib
import dataclasses
import functools
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from .tiny_configs import (
    ALWAYS,
    CLASSIFIERS,
    ENCODER_DECODERS,
    ENCODERS,
    NOT_BUILT,
    NOT_EAGER,
    OVERRIDES,
    SHRUNK,
)
from .tiny_variants import VARIANTS

SEED = 0
TOKENS = range(4, 96)
"""Ordinary token ids of every tiny vocabulary."""


class CannotBuild(Exception):
    """Transformers does not run the class on token ids; the message says why."""


@functools.cache
def causal_architectures() -> Mapping[str, tuple[str, ...]]:
    """Every class of transformers' causal-LM mapping, with the model types that lead to it."""
    types: dict[str, list[str]] = {}
    for model_type, name in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.items():
        types.setdefault(name, []).append(model_type)
    return {name: tuple(types[name]) for name in sorted(types, key=str.lower)}


def cases(names: Iterator[str] | list[str] | None = None) -> list[str]:
    """The cases of the named classes (all causal ones by default): the class, then `Class:variant`."""
    return [
        case
        for name in (causal_architectures() if names is None else names)
        for case in ([name] if ":" in name else [name, *(f"{name}:{v}" for v in VARIANTS.get(name, {}))])
    ]


def pooling_cases() -> list[str]:
    """Encoders and classifiers."""
    return cases([*ENCODERS, *CLASSIFIERS])


def encoder_decoder_cases() -> list[str]:
    """Models with an encoder and a decoder."""
    return list(ENCODER_DECODERS)


def architecture_of(case: str) -> str:
    """The class of a case."""
    return case.partition(":")[0]


def build(case: str, seed: int = SEED) -> transformers.PreTrainedModel:
    """Builds the model of a case in float32 on the CPU, ready to run, the same in every process.

    Norms, biases and what else starts out constant is random too, so that leaving it out shows.

    Raises:
        CannotBuild: Transformers has no such class, or cannot run it on token ids alone.
    """
    name = architecture_of(case)
    model_class = getattr(transformers, name, None)
    if model_class is None:
        raise CannotBuild(f"transformers {transformers.__version__} has no {name}")
    if name in NOT_BUILT:
        raise CannotBuild(NOT_BUILT[name])
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        config = tiny_config(case)
        torch.manual_seed(seed)
        model = model_class._from_config(config, attn_implementation=NOT_EAGER.get(case, "eager"))
    model = model.eval().float()
    _randomize_constants(model, seed)
    return model


def save(model: transformers.PreTrainedModel, folder: Path) -> None:
    """Saves config and weights, named as checkpoints on the Hub are."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.save_pretrained(folder)


def tokens(count: int, seed: int) -> list[int]:
    """Random ordinary token ids."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(TOKENS.start, TOKENS.stop, (count,), generator=generator).tolist()


def tiny_config(case: str) -> transformers.PreTrainedConfig:
    """The config of a case."""
    name, _, variant = case.partition(":")
    config_class = getattr(transformers, name).config_class
    fields = _merge(_shrink(config_class), OVERRIDES.get(name, {}))
    if variant:
        fields = _merge(fields, VARIANTS[name][variant])
    if name not in causal_architectures() and "is_decoder" in fields:
        fields["is_decoder"] = False
    return config_class(**fields)


def _merge(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, value in changes.items():
        if value is None and key not in ("sliding_window", "q_lora_rank", "position_embedding_type"):
            merged.pop(key, None)
        elif isinstance(value, Mapping) and isinstance(merged.get(key), dict) and key.endswith("config"):
            merged[key] = _merge(merged[key], value)
        else:
            merged[key] = value
    return merged


def _shrink(config_class: type[transformers.PreTrainedConfig]) -> dict[str, Any]:
    fields = {field.name: field for field in dataclasses.fields(config_class)}
    default = _defaults(config_class, fields)
    found: dict[str, Any] = {}
    for name in fields.keys() & SHRUNK.keys():
        value = default.get(name)
        if value is not None or name in ALWAYS:
            found[name] = SHRUNK[name]
    if "kv_lora_rank" in found and "num_key_value_heads" in found:
        found["num_key_value_heads"] = found["num_attention_heads"]
    for kind in fields.keys() & {"layer_types", "mlp_layer_types"}:
        value = default.get(kind)
        if isinstance(value, list) and not (kind == "mlp_layer_types" and "first_k_dense_replace" in found):
            kinds = list(dict.fromkeys(value))
            found[kind] = [kinds[i % len(kinds)] for i in range(found.get("num_hidden_layers", 4))]
    rope = default.get("rope_parameters")
    if isinstance(rope, Mapping):
        found["rope_parameters"] = _shrink_rope(rope)
    for part_name in config_class.sub_configs:
        part = default.get(part_name)
        if isinstance(part, transformers.PreTrainedConfig):
            found[part_name] = _shrink(type(part)) | {"model_type": part.model_type}
    return found


def _defaults(
    config_class: type[transformers.PreTrainedConfig], fields: Mapping[str, dataclasses.Field[Any]]
) -> dict[str, Any]:
    # Some classes reject their own defaults, others refuse to read a field: each in its own way.
    with warnings.catch_warnings(), contextlib.suppress(Exception):
        warnings.simplefilter("ignore")
        default = config_class()
        found = dict(vars(default))
        for name in {*fields, *config_class.sub_configs} - found.keys():
            with contextlib.suppress(Exception):
                found[name] = getattr(default, name)
        return found
    return {name: field.default for name, field in fields.items()}


def _shrink_rope(rope: Mapping[str, Any]) -> dict[str, Any]:
    small: dict[str, Any] = {}
    for key, value in rope.items():
        if isinstance(value, Mapping):
            small[key] = _shrink_rope(value)
        elif key == "rope_theta":
            small[key] = min(value, 1000.0)
        else:
            small[key] = 32 if key == "original_max_position_embeddings" else value
    return small


@torch.no_grad()
def _randomize_constants(model: transformers.PreTrainedModel, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed + 1)
    # xIELU keeps its eps as a buffer, but no checkpoint has another than the constant.
    saved = {name for name in model.state_dict() if not name.endswith("act_fn.eps")}
    buffers = {n: b for n, b in model.named_buffers() if n in saved and b.is_floating_point()}
    for tensor in {**dict(model.named_parameters()), **buffers}.values():
        if tensor.dim() <= 1 or bool((tensor == tensor.flatten()[0]).all()):
            tensor.add_(torch.randn(tensor.shape, generator=generator) * 0.2)
