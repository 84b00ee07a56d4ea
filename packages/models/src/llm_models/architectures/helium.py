"""Owns the spec of Helium; knows nothing about weights or the runtime."""

from collections.abc import Mapping
from typing import Any

from llm_models.architectures import architecture
from llm_models.architectures.common import attention, decoder, gated_mlp, rms_norm
from llm_models.architectures.layouts import with_defaults
from llm_models.blocks.layer import pre_norm
from llm_models.config import ConfigReader
from llm_models.spec import DecoderSpec


@architecture("HeliumForCausalLM")
def helium(config: Mapping[str, Any]) -> DecoderSpec:
    """Helium: Llama whose rope turns neighbouring pairs."""
    reader, norm = ConfigReader(config), rms_norm(config, default=1e-8)
    bias = reader.boolean("attention_bias", False)
    config = with_defaults(config, head_dim=128)
    mixer = attention(config, qkv_bias=bias, theta=100000.0, interleaved=True)
    layer = pre_norm(mixer, gated_mlp(config, bias=reader.boolean("mlp_bias", False)), norm)
    return decoder(config, [layer] * reader.positive_int("num_hidden_layers"), final_norm=norm)
