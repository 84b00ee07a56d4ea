"""Owns the specs of OLMo 1 to 3; knows nothing about weights or the runtime."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from llm_models.architectures import architecture
from llm_models.architectures.common import attention, decoder, gated_mlp, rms_norm
from llm_models.architectures.layouts import (
    FULL,
    SLIDING,
    attention_windows,
    every_nth,
    outer_norm,
    sliding_rope_config,
    with_defaults,
)
from llm_models.blocks.attention import Attention, QKNorm
from llm_models.blocks.layer import pre_norm
from llm_models.blocks.norm import Norm
from llm_models.config import ConfigReader
from llm_models.names import LLAMA_NAMES
from llm_models.spec import DecoderSpec

OUTER_NORM_NAMES = LLAMA_NAMES.but(
    {
        "post_attention_layernorm": "attention.post_norm",
        "post_feedforward_layernorm": "mlp.post_norm",
    },
    without=("input_layernorm",),
)
_OLMO3_THETA = 500000.0


@architecture("OlmoForCausalLM")
def olmo(config: Mapping[str, Any]) -> DecoderSpec:
    """OLMo 1: Llama with layer norms that have no weights, at times with clamped queries, keys and values."""
    reader, norm = ConfigReader(config), Norm(eps=1e-5, kind="layer", weight=False)
    clip = reader.positive_float("clip_qkv") if reader.has("clip_qkv") else None
    layer = pre_norm(replace(_mixer(config), clip=clip), gated_mlp(config), norm)
    return decoder(config, [layer] * reader.positive_int("num_hidden_layers"), final_norm=norm)


@architecture("Olmo2ForCausalLM")
def olmo2(config: Mapping[str, Any]) -> DecoderSpec:
    """OLMo 2: norms after the blocks, and over all queries and all keys."""
    norm = rms_norm(config, default=1e-5)
    mixer = replace(_mixer(config), qk_norm=QKNorm(norm=norm, over="all"))
    layer = outer_norm(mixer, gated_mlp(config), norm)
    layers = [layer] * ConfigReader(config).positive_int("num_hidden_layers")
    return decoder(config, layers, final_norm=norm, names=OUTER_NORM_NAMES)


@architecture("Olmo3ForCausalLM")
def olmo3(config: Mapping[str, Any]) -> DecoderSpec:
    """OLMo 3: OLMo 2 with three layers with a window to one without; only the latter stretch their rope."""
    config = with_defaults(config, sliding_window=4096)
    norm, mlp = rms_norm(config, default=1e-5), gated_mlp(config)
    sliding = sliding_rope_config(config, config.get("rope_theta", _OLMO3_THETA))
    layers = []
    for window in attention_windows(config, every_nth(4)):
        mixer = _mixer(config, FULL) if window is None else _mixer(sliding, SLIDING)
        mixer = replace(mixer, sliding_window=window, qk_norm=QKNorm(norm=norm, over="all"))
        layers.append(outer_norm(mixer, mlp, norm))
    return decoder(config, layers, final_norm=norm, names=OUTER_NORM_NAMES)


def _mixer(config: Mapping[str, Any], layer_type: str | None = None) -> Attention:
    bias = ConfigReader(config).boolean("attention_bias", False)
    theta = 10000.0 if layer_type is None else _OLMO3_THETA
    return attention(config, qkv_bias=bias, output_bias=bias, layer_type=layer_type, theta=theta)
