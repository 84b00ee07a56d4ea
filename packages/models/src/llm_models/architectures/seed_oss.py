"""Owns the spec of Seed-OSS; knows nothing about weights or the runtime."""

from collections.abc import Mapping
from typing import Any

from llm_models.architectures import architecture
from llm_models.architectures.common import attention, decoder, gated_mlp, rms_norm
from llm_models.architectures.layouts import with_defaults
from llm_models.blocks.layer import pre_norm
from llm_models.config import ConfigReader
from llm_models.spec import DecoderSpec


@architecture("SeedOssForCausalLM")
def seed_oss(config: Mapping[str, Any]) -> DecoderSpec:
    """Seed-OSS: Llama with heads of their own size and biases on query, key and value."""
    reader, norm = ConfigReader(config), rms_norm(config)
    mixer = attention(
        with_defaults(config, head_dim=128),
        qkv_bias=reader.boolean("attention_bias", True),
        output_bias=reader.boolean("attention_out_bias", False),
    )
    layer = pre_norm(mixer, gated_mlp(config, bias=reader.boolean("mlp_bias", False)), norm)
    return decoder(config, [layer] * reader.positive_int("num_hidden_layers"), final_norm=norm)
