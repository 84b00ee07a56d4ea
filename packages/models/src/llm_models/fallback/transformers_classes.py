"""Owns finding transformers' class and config for a checkpoint; knows nothing about running a model."""

import functools
import importlib.util
import sys
from collections.abc import Mapping
from typing import Any


def installed() -> bool:
    """Whether transformers can be imported here."""
    return importlib.util.find_spec("transformers") is not None


def causal_class(name: str) -> Any | None:
    """The class `name`, if it is one of transformers' classes for causal language models, else None."""
    import transformers

    return getattr(transformers, name, None) if name in causal_class_names() else None


@functools.cache
def causal_class_names() -> frozenset[str]:
    """All class names of transformers' own mapping."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    names: set[str] = set()
    for value in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values():
        names.update((value,) if isinstance(value, str) else value)
    return frozenset(names)


def uses_attention_interface(found: type) -> bool:
    """Whether the attention of a class seems to go through transformers' attention interface."""
    if getattr(found, "_supports_attention_backend", False):
        return True
    return hasattr(sys.modules[found.__module__], "ALL_ATTENTION_FUNCTIONS")


def native_config(config: Mapping[str, Any]) -> Any:
    """The config as an object of transformers' own class."""
    from transformers import CONFIG_MAPPING

    model_type = config.get("model_type", "")
    if model_type not in CONFIG_MAPPING:
        raise ValueError(f"model_type {model_type!r} is unknown to it")
    return CONFIG_MAPPING[model_type].from_dict(_decoded(dict(config)))


def _decoded(value: Any) -> Any:
    # Transformers writes numbers that JSON does not know as {"__float__": "Infinity"}.
    if isinstance(value, dict):
        if set(value) == {"__float__"}:
            return float(value["__float__"])
        return {key: _decoded(inner) for key, inner in value.items()}
    return [_decoded(inner) for inner in value] if isinstance(value, list) else value


def remote_name(config: Mapping[str, Any]) -> str | None:
    """What `auto_map` names for a causal language model, or None."""
    mapped = config.get("auto_map")
    found = mapped.get("AutoModelForCausalLM") if isinstance(mapped, Mapping) else None
    return found if isinstance(found, str) else None
