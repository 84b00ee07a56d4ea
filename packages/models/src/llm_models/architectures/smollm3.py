"""Owns the spec of SmolLM3; knows nothing about weights or the runtime."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from llm_models.architectures import architecture
from llm_models.architectures.common import attention, decoder, gated_mlp, rms_norm
from llm_models.architectures.layouts import attention_windows
from llm_models.blocks.layer import pre_norm
from llm_models.config import ConfigReader
from llm_models.errors import ConfigError
from llm_models.spec import DecoderSpec


@architecture("SmolLM3ForCausalLM")
def smollm3(config: Mapping[str, Any]) -> DecoderSpec:
    """SmolLM3: Llama in which every fourth layer has no rope, and at times a window instead."""
    reader, norm = ConfigReader(config), rms_norm(config)
    bias = reader.boolean("attention_bias", False)
    mixer = attention(config, qkv_bias=bias, output_bias=bias, theta=2000000.0)
    mlp = gated_mlp(config, bias=reader.boolean("mlp_bias", False))
    turns = _layers_with_rope(config)
    if not reader.boolean("use_sliding_window", False):
        config = {**config, "sliding_window": None}
    has_window = config.get("sliding_window") is not None
    windows = attention_windows(config, lambda layer: turns[layer] or not has_window)
    layers = [
        pre_norm(replace(mixer, sliding_window=window, rope=mixer.rope if turn else None), mlp, norm)
        for window, turn in zip(windows, turns, strict=True)
    ]
    return decoder(config, layers, final_norm=norm, tied=True)


def _layers_with_rope(config: Mapping[str, Any]) -> list[bool]:
    """From `no_rope_layers`, which marks the layers with rope, or from their interval."""
    reader = ConfigReader(config)
    layers = reader.positive_int("num_hidden_layers")
    if not reader.has("no_rope_layers"):
        interval = reader.positive_int("no_rope_layer_interval", 4)
        return [(layer + 1) % interval != 0 for layer in range(layers)]
    marks = [bool(mark) for mark in reader.sequence("no_rope_layers")]
    if len(marks) != layers:
        raise ConfigError("no_rope_layers", f"has {len(marks)} entries for {layers} layers")
    return marks
