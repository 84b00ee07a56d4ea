"""Owns the specs of Cohere's Command R models; knows nothing about weights or the runtime."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from llm_models.architectures import architecture
from llm_models.architectures.common import attention, decoder, gated_mlp, layer_norm
from llm_models.architectures.layouts import (
    FULL,
    SLIDING,
    attention_windows,
    every_nth,
    parallel,
    with_defaults,
)
from llm_models.blocks.attention import Attention, QKNorm
from llm_models.blocks.layer import LayerSpec
from llm_models.config import ConfigReader
from llm_models.spec import DecoderSpec, Head


@architecture("CohereForCausalLM")
def cohere(config: Mapping[str, Any]) -> DecoderSpec:
    """Command R: both blocks side by side behind one layer norm, scaled logits, at times norms of heads."""
    reader, norm = ConfigReader(config), layer_norm(config, bias=False)
    qk_norm = QKNorm(norm=norm, over="each_head") if reader.boolean("use_qk_norm", False) else None
    mixer = replace(_mixer(config, theta=500000.0), qk_norm=qk_norm)
    layer = parallel(mixer, gated_mlp(config), norm)
    return _cohere(config, [layer] * reader.positive_int("num_hidden_layers"))


@architecture("Cohere2ForCausalLM")
def cohere2(config: Mapping[str, Any]) -> DecoderSpec:
    """Command R7B and Command A: three layers with a window and rope to one without either."""
    config = with_defaults(config, sliding_window=4096)
    norm, mlp, mixer = layer_norm(config, bias=False), gated_mlp(config), _mixer(config)
    period = ConfigReader(config).positive_int("sliding_window_pattern", 4)
    layers = [
        parallel(replace(mixer, sliding_window=window, rope=mixer.rope if window else None), mlp, norm)
        for window in attention_windows(config, every_nth(period))
    ]
    return _cohere(config, layers)


@architecture("CohereCompassForCausalLM")
def cohere_compass(config: Mapping[str, Any]) -> DecoderSpec:
    """The text model of Compass: Command A with a rope by kind of layer, or none."""
    config = with_defaults(config, sliding_window=4096)
    if config.get("logit_scale") is None:
        config["logit_scale"] = 1.0
    norm, mlp = layer_norm(config, bias=False), gated_mlp(config)
    bias = ConfigReader(config).boolean("attention_bias", False)
    layers = []
    for window in attention_windows(config, lambda _: True):
        kind = FULL if window is None else SLIDING
        # Text has the same position in every section of the rope for pictures.
        mixer = attention(config, qkv_bias=bias, output_bias=bias, layer_type=kind)
        has_rope = (config.get("rope_parameters") or {}).get(kind, {}) is not None
        layers.append(
            parallel(replace(mixer, sliding_window=window, rope=mixer.rope if has_rope else None), mlp, norm)
        )
    return _cohere(config, layers)


def _mixer(config: Mapping[str, Any], theta: float = 10000.0) -> Attention:
    bias = ConfigReader(config).boolean("attention_bias", False)
    return attention(config, qkv_bias=bias, output_bias=bias, theta=theta, interleaved=True)


def _cohere(config: Mapping[str, Any], layers: Sequence[LayerSpec]) -> DecoderSpec:
    scale = ConfigReader(config).positive_float("logit_scale", 0.0625)
    norm = layer_norm(config, bias=False)
    return decoder(config, layers, final_norm=norm, head=Head(tied=True, scale=scale), tied=True)
