"""Owns how the text part of a multimodal model is read: its config and its tensors' names.

Knows nothing about any family, weights or the runtime.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from llm_models.config import architecture_name
from llm_models.errors import ConfigError
from llm_models.names import Names, in_layer


def text_config(config: Mapping[str, Any], *, tied: bool = False) -> dict[str, Any]:
    """`text_config`, with the architecture, the tied head and the quantization that the whole config states.

    On the tied head the whole config has precedence.

    Args:
        config: The whole config.
        tied: Whether the head is the embedding, where neither part says so.

    Raises:
        ConfigError: There is no `text_config`.
    """
    text = config.get("text_config")
    if not isinstance(text, Mapping):
        raise ConfigError("text_config", f"must be an object, not {text!r}")
    stated = [part["tie_word_embeddings"] for part in (config, text) if "tie_word_embeddings" in part]
    whole = {
        "architectures": [architecture_name(config)],
        "tie_word_embeddings": stated[0] if stated else tied,
    }
    if config.get("quantization_config") is not None:
        whole["quantization_config"] = config["quantization_config"]
    return {**text, **whole}


def text_names(names: Names, *prefixes: str, harmless: tuple[str, ...]) -> Names:
    """The names of a text model inside a multimodal one.

    Args:
        names: Of the text model alone.
        prefixes: What may stand in the place of its `model.`, the likeliest first. Where that ends with
            `model.`, what lies beside (the head) has the rest as its prefix.
        harmless: Regular expressions of the other parts' tensors.
    """

    def places(name: str) -> list[str]:
        bare = name.removeprefix("model.")
        if bare != name:
            return [prefix + bare for prefix in prefixes]
        return [prefix.removesuffix("model.") + name for prefix in prefixes if prefix.endswith("model.")] + [
            name
        ]

    top = {place: target for name, target in names.top.items() for place in places(name)}
    for name, target in names.inside.items():
        top |= {f"{layer}.{name}": in_layer(target) for layer in places(names.layer)}
    return replace(names, top=top, inside={}, optional_prefix="", harmless=names.harmless + harmless)
