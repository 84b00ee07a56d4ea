"""Owns the spec of MiMo V2 Flash; knows nothing about weights or the runtime."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from llm_models.architectures import architecture
from llm_models.architectures.common import attention, decoder, rms_norm
from llm_models.architectures.layouts import FULL, SLIDING, attention_windows, with_defaults
from llm_models.architectures.mixtures import expert_names, feed_forwards, sigmoid_router
from llm_models.blocks.attention import Attention
from llm_models.blocks.layer import pre_norm
from llm_models.blocks.moe import MoE
from llm_models.config import ConfigReader
from llm_models.errors import ConfigError, UnsupportedConfig
from llm_models.names import LLAMA_NAMES
from llm_models.spec import DecoderSpec

_NAMES = LLAMA_NAMES.but(
    {
        **expert_names(),
        "mlp.gate.e_score_correction_bias": "mlp.router.correction",
        "self_attn.attention_sink_bias": "attention.sinks",
    },
    # Layers that predict several tokens at once.
    harmless=(r"model\.mtp\..*",),
)


@architecture("MiMoV2FlashForCausalLM")
def mimo_v2_flash(config: Mapping[str, Any]) -> DecoderSpec:
    """MiMo V2 Flash: most layers have a window, sinks and twice the KV heads; values are scaled."""
    config = _as_transformers_has_it(config)
    reader, norm = ConfigReader(config), rms_norm(config, default=1e-5)
    moe = MoE(
        num_experts=reader.positive_int("n_routed_experts", 256),
        expert_size=reader.positive_int("moe_intermediate_size", 2048),
        activation=reader.activation(),
        router=sigmoid_router(with_defaults(config, num_experts_per_tok=8)),
    )
    # Full attention in the first layer and every sixth.
    windows = attention_windows(config, lambda layer: layer == 0 or (layer + 1) % 6 == 0)
    blocks = feed_forwards(config, moe, dense_layers=1)
    layers = [
        pre_norm(_mixer(config, window), block, norm) for window, block in zip(windows, blocks, strict=True)
    ]
    return decoder(config, layers, final_norm=norm, names=_NAMES)


def _mixer(config: Mapping[str, Any], window: int | None) -> Attention:
    reader = ConfigReader(config)
    mixer = attention(
        config,
        default_head_size=192,
        qkv_bias=reader.boolean("attention_bias", False),
        layer_type=FULL if window is None else SLIDING,
    )
    mixer = replace(
        mixer,
        value_size=reader.positive_int("v_head_dim", 128),
        value_scale=reader.positive_float("attention_value_scale", 0.707)
        if config.get("attention_value_scale", 0.707) is not None
        else 1.0,
    )
    if window is None:
        return mixer
    return replace(mixer, sliding_window=window, sinks=True, num_kv_heads=2 * mixer.num_kv_heads)


def _as_transformers_has_it(config: Mapping[str, Any]) -> dict[str, Any]:
    """The config with the fields of the Hub's one turned into those of transformers."""
    config, reader = dict(config), ConfigReader(config)
    kv_heads = reader.positive_int("num_key_value_heads", 4)
    for field, wanted in (
        ("swa_num_key_value_heads", 2 * kv_heads),
        ("swa_num_attention_heads", config.get("num_attention_heads")),
        ("swa_head_dim", config.get("head_dim")),
        ("swa_v_head_dim", config.get("v_head_dim")),
        ("add_swa_attention_sink_bias", True),
        ("add_full_attention_sink_bias", False),
    ):
        if config.get(field) is not None and config[field] != wanted:
            raise UnsupportedConfig(field, f"is not {wanted}")
    # The query's own token comes on top.
    size = reader.positive_int("sliding_window_size") + 1 if reader.has("sliding_window_size") else None
    config["sliding_window"] = size or reader.positive_int("sliding_window", 129)
    for field, name, words in (
        ("hybrid_layer_pattern", "layer_types", (FULL, SLIDING)),
        ("moe_layer_freq", "mlp_layer_types", ("dense", "sparse")),
    ):
        if config.get(name) is None and config.get(field) is not None:
            if not all(flag in (0, 1) for flag in reader.sequence(field)):
                raise ConfigError(field, "must hold zeros and ones")
            config[name] = [words[flag] for flag in reader.sequence(field)]
    if config.get("rope_parameters") is None:
        reader.refuse("rope_scaling", "ropes by kind of layer are not scaled")
        partial = reader.positive_float("partial_rotary_factor", 0.334)
        thetas = {
            FULL: reader.positive_float("rope_theta", 5e6),
            SLIDING: reader.positive_float("swa_rope_theta", 1e4),
        }
        config["rope_parameters"] = {
            kind: {"rope_type": "default", "rope_theta": theta, "partial_rotary_factor": partial}
            for kind, theta in thetas.items()
        }
    return config
