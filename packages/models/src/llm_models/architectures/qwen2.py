"""Owns the spec of Qwen2 and Qwen2.5, and the windows of the Qwen family; knows nothing about weights."""

from collections.abc import Mapping
from typing import Any

from llm_models.architectures import architecture
from llm_models.architectures.common import attention, decoder, gated_mlp, rms_norm
from llm_models.blocks.layer import pre_norm
from llm_models.config import ConfigReader
from llm_models.errors import ConfigError, UnsupportedConfig
from llm_models.spec import DecoderSpec


def layer_windows(config: Mapping[str, Any]) -> list[int | None]:
    """The sliding window of every layer.

    `sliding_window` counts only with `use_sliding_window`. `layer_types` says which layers have it; without
    that list the layers from `max_window_layers` on do.
    """
    reader = ConfigReader(config)
    layers = reader.positive_int("num_hidden_layers")
    window = None
    if reader.boolean("use_sliding_window", False) and reader.has("sliding_window"):
        window = reader.positive_int("sliding_window")
    if not reader.has("layer_types"):
        first = config.get("max_window_layers", 28)
        if isinstance(first, bool) or not isinstance(first, int) or first < 0:
            raise ConfigError("max_window_layers", f"must be an integer from 0 on, not {first!r}")
        return [window if layer >= first else None for layer in range(layers)]
    kinds = reader.sequence("layer_types")
    if len(kinds) != layers:
        raise ConfigError("layer_types", f"has {len(kinds)} entries for {layers} layers")
    for kind in kinds:
        if kind not in {"full_attention", "sliding_attention"}:
            raise UnsupportedConfig("layer_types", f"{kind!r} is not supported")
        if kind == "sliding_attention" and window is None:
            raise ConfigError("layer_types", "names sliding_attention but no sliding_window is in use")
    return [window if kind == "sliding_attention" else None for kind in kinds]


@architecture("Qwen2ForCausalLM")
def qwen2(config: Mapping[str, Any]) -> DecoderSpec:
    """Qwen2 and Qwen2.5: Llama with biases on query, key and value."""
    norm, mlp = rms_norm(config), gated_mlp(config)
    layers = [
        pre_norm(attention(config, qkv_bias=True, sliding_window=window), mlp, norm)
        for window in layer_windows(config)
    ]
    return decoder(config, layers, final_norm=norm)
