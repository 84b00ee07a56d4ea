"""Owns the specs of Bamba and Falcon H1: Mamba 2 layers with attention between them or beside them."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from llm_models.architectures import architecture
from llm_models.architectures.common import attention, decoder, gated_mlp, rms_norm
from llm_models.architectures.hybrid_parts import (
    FULL,
    LINEAR,
    MAMBA2_NAMES,
    hybrid_kinds,
    hybrid_names,
    mamba2,
)
from llm_models.architectures.layouts import with_defaults
from llm_models.blocks.layer import BlockSpec, Branch, Layer
from llm_models.blocks.mamba2 import GatedNorm
from llm_models.blocks.scaled import Scaled
from llm_models.config import ConfigReader
from llm_models.errors import ConfigError
from llm_models.names import LLAMA_NAMES
from llm_models.spec import DecoderSpec, Embedding, Head

_NAMES = hybrid_names(
    LLAMA_NAMES,
    {
        **MAMBA2_NAMES,
        "pre_ff_layernorm": "mlp.norm",
        "feed_forward.gate_proj": "mlp.gate",
        "feed_forward.up_proj": "mlp.up",
        "feed_forward.down_proj": "mlp.down",
    },
    "model.final_layernorm",
)


@architecture("BambaForCausalLM")
def bamba(config: Mapping[str, Any]) -> DecoderSpec:
    """Bamba: attention with half-turned heads in a few layers, Mamba 2 in the others."""
    config = with_defaults(config, num_key_value_heads=8, max_position_embeddings=262144)
    reader, norm = ConfigReader(config), rms_norm(config, default=1e-5)
    bias = reader.boolean("attention_bias", False)
    full = attention(config, qkv_bias=bias, output_bias=bias, partial=0.5)
    mixers: dict[str, BlockSpec] = {FULL: full, LINEAR: mamba2(config)}
    mlp = gated_mlp(config, bias=reader.boolean("mlp_bias", False))
    chosen = set(reader.sequence("attn_layer_indices") if reader.has("attn_layer_indices") else ())
    default = [FULL if i in chosen else LINEAR for i in range(reader.positive_int("num_hidden_layers"))]
    layers = [
        Layer((Branch(blocks=(mixers[kind],), pre=norm, name="mixer"), Branch(blocks=(mlp,), pre=norm)))
        for kind in hybrid_kinds(config, default)
    ]
    return decoder(config, layers, final_norm=norm, names=_NAMES)


@architecture("FalconH1ForCausalLM")
def falcon_h1(config: Mapping[str, Any]) -> DecoderSpec:
    """Falcon H1: attention and Mamba 2 side by side in every layer, with factors on everything."""
    config = with_defaults(config, num_key_value_heads=8)
    reader, norm = ConfigReader(config), rms_norm(config, default=1e-5)
    branches = (
        Branch(blocks=(_falcon_mamba2(config), _falcon_attention(config)), pre=norm, name="mixer"),
        Branch(blocks=(_falcon_mlp(config),), pre=norm),
    )
    scale = reader.number("embedding_multiplier", 1.0)
    return decoder(
        config,
        [Layer(branches)] * reader.positive_int("num_hidden_layers"),
        final_norm=norm,
        names=_NAMES,
        embedding=Embedding(vocab_size=reader.positive_int("vocab_size"), scale=scale),
        head=Head(tied=False, scale=reader.number("lm_head_multiplier", 1.0)),
    )


def _falcon_mamba2(config: Mapping[str, Any]) -> BlockSpec:
    reader = ConfigReader(config)
    stated = config.get("mamba_d_ssm", 1024) is not None
    mixer = mamba2(config, inner_size=reader.positive_int("mamba_d_ssm", 1024) if stated else None)
    norm = None
    if reader.boolean("mamba_rms_norm", False):
        before = reader.boolean("mamba_norm_before_gate", True)
        norm = GatedNorm(eps=reader.positive_float("rms_norm_eps", 1e-5), before_gate=before)
    mixer = replace(
        mixer,
        norm=norm,
        output_bias=reader.boolean("projectors_bias", False),
        part_scales=_multipliers(reader, "ssm_multipliers", 5),
    )
    return Scaled(
        block=mixer,
        input_scale=reader.number("ssm_in_multiplier", 1.0),
        output_scale=reader.number("ssm_out_multiplier", 1.0),
    )


def _falcon_attention(config: Mapping[str, Any]) -> BlockSpec:
    reader = ConfigReader(config)
    bias = reader.boolean("attention_bias", False)
    mixer = attention(config, qkv_bias=bias, output_bias=bias)
    return Scaled(
        block=replace(mixer, key_scale=reader.number("key_multiplier", 1.0)),
        input_scale=reader.number("attention_in_multiplier", 1.0),
        output_scale=reader.number("attention_out_multiplier", 1.0),
    )


def _falcon_mlp(config: Mapping[str, Any]) -> BlockSpec:
    reader = ConfigReader(config)
    gate_scale, scale = _multipliers(reader, "mlp_multipliers", 2)
    mlp = gated_mlp(config, bias=reader.boolean("mlp_bias", False))
    return replace(mlp, gate_scale=gate_scale, scale=scale)


def _multipliers(reader: ConfigReader, field: str, count: int) -> tuple[float, ...]:
    values = reader.floats(field, (1.0,) * count)
    if len(values) != count:
        raise ConfigError(field, f"has {len(values)} entries, not {count}")
    return values
