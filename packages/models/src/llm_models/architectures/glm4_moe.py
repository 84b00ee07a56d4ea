"""Owns the specs of GLM-4.5 and what shares its mixture; knows nothing about weights or the runtime."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from llm_models.architectures import architecture
from llm_models.architectures.common import attention, decoder, layer_kinds, rms_norm
from llm_models.architectures.deepseek import EXPERT_NAMES, LATENT_NAMES, grouped_moe, latent_attention
from llm_models.architectures.layouts import FULL, SLIDING, attention_windows, with_defaults
from llm_models.architectures.mixtures import feed_forwards, further_layers, sigmoid_router
from llm_models.blocks.attention import QKNorm
from llm_models.blocks.layer import Layer, LayerSpec, pre_norm
from llm_models.blocks.moe import MoE
from llm_models.blocks.norm import Norm
from llm_models.config import ConfigReader
from llm_models.errors import UnsupportedConfig
from llm_models.names import LLAMA_NAMES
from llm_models.spec import DecoderSpec

_NAMES = LLAMA_NAMES.but(EXPERT_NAMES)
LATENT_EXPERT_NAMES = _NAMES.but(LATENT_NAMES, without=("self_attn.k_proj", "self_attn.v_proj"))
"""Names of latent attention and of experts as DeepSeek has them."""


@architecture("Glm4MoeForCausalLM")
def glm4_moe(config: Mapping[str, Any]) -> DecoderSpec:
    """GLM-4.5 and 4.6."""
    config = with_defaults(config, n_shared_experts=1, n_routed_experts=128, num_experts_per_tok=8)
    reader, norm = ConfigReader(config), rms_norm(config, default=1e-5)
    mixer = attention(
        config,
        qkv_bias=reader.boolean("attention_bias", False),
        qk_norm=QKNorm(norm=norm) if reader.boolean("use_qk_norm", False) else None,
        partial=0.5,
    )
    moe = grouped_moe(config, sigmoid_router(config))
    layers = [pre_norm(mixer, block, norm) for block in feed_forwards(config, moe, dense_layers=1)]
    names = _NAMES.but(harmless=further_layers(config))
    return decoder(config, layers, final_norm=norm, names=names)


@architecture("Glm4MoeLiteForCausalLM")
def glm4_moe_lite(config: Mapping[str, Any]) -> DecoderSpec:
    """GLM-4.7 Flash: latent attention."""
    defaults = {"num_experts_per_tok": 4, "routed_scaling_factor": 1.8, "rms_norm_eps": 1e-5}
    return latent_moe(with_defaults(config, n_shared_experts=1, n_routed_experts=64, **defaults))


@architecture("AXK1ForCausalLM")
def axk1(config: Mapping[str, Any]) -> DecoderSpec:
    """A.X K1: latent attention, and a norm after each mixture."""
    defaults = {"num_experts_per_tok": 8, "routed_scaling_factor": 2.5, "n_group": 8, "topk_group": 4}
    config = with_defaults(config, n_shared_experts=1, n_routed_experts=192, **defaults)
    if ConfigReader(config).positive_int("moe_layer_freq", 1) != 1:
        raise UnsupportedConfig("moe_layer_freq", "is not 1")
    spec, norm = latent_moe(config), rms_norm(config)
    layers = tuple(_with_post_norm(layer, norm) for layer in spec.layers)
    names = spec.names.but({"post_mlp_layernorm": "mlp.post_norm"})
    return replace(spec, layers=layers, names=names)


@architecture("SolarOpenForCausalLM")
def solar_open(config: Mapping[str, Any]) -> DecoderSpec:
    """Solar Open."""
    reader, norm = ConfigReader(config), rms_norm(config, default=1e-5)
    bias = reader.boolean("attention_bias", False)
    mixer = attention(config, default_head_size=128, qkv_bias=bias, theta=1e6)
    moe = grouped_moe(config, sigmoid_router(config))
    layers = [pre_norm(mixer, moe, norm)] * reader.positive_int("num_hidden_layers")
    names = _NAMES.but(harmless=further_layers(config))
    return decoder(config, layers, final_norm=norm, names=names)


@architecture("Dots1ForCausalLM")
def dots1(config: Mapping[str, Any]) -> DecoderSpec:
    """dots.llm1: norms of heads, and a window from `max_window_layers` on."""
    config = with_defaults(config, sliding_window=4096)
    reader, norm = ConfigReader(config), rms_norm(config)
    bias = reader.boolean("attention_bias", False)
    mixer = attention(config, qkv_bias=bias, output_bias=bias, qk_norm=QKNorm(norm=norm))
    moe = grouped_moe(config, sigmoid_router(config, renormalize=False))
    if layer_kinds(config) is None:
        count = reader.positive_int("num_hidden_layers")
        first = reader.whole_number("max_window_layers", 62) if reader.has("sliding_window") else count
        config = {**config, "layer_types": [FULL if layer < first else SLIDING for layer in range(count)]}
    windows = attention_windows(config, lambda _: True)
    layers = [
        pre_norm(replace(mixer, sliding_window=window), block, norm)
        for window, block in zip(windows, feed_forwards(config, moe), strict=True)
    ]
    return decoder(config, layers, final_norm=norm, names=_NAMES)


def _with_post_norm(layer: LayerSpec, norm: Norm) -> LayerSpec:
    assert isinstance(layer, Layer)
    mixer, feed_forward = layer.branches
    if not isinstance(feed_forward.blocks[0], MoE):
        return layer
    return Layer((mixer, replace(feed_forward, post=norm)))


def latent_moe(config: Mapping[str, Any]) -> DecoderSpec:
    """Latent attention with a mixture in all layers but the first."""
    norm = rms_norm(config)
    mixer = latent_attention(config, interleaved=ConfigReader(config).boolean("rope_interleave", True))
    moe = grouped_moe(config, sigmoid_router(config))
    layers = [pre_norm(mixer, block, norm) for block in feed_forwards(config, moe, dense_layers=1)]
    names = LATENT_EXPERT_NAMES.but(harmless=further_layers(config))
    return decoder(config, layers, final_norm=norm, names=names)
