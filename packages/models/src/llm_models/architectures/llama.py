"""Owns the spec of Llama 2 and 3; knows nothing about weights or the runtime."""

from collections.abc import Mapping
from typing import Any

from llm_models.architectures import architecture
from llm_models.architectures.common import attention, decoder, gated_mlp, rms_norm
from llm_models.blocks.layer import pre_norm
from llm_models.config import ConfigReader
from llm_models.spec import DecoderSpec


@architecture("LlamaForCausalLM")
def llama(config: Mapping[str, Any]) -> DecoderSpec:
    """Llama 2 and 3, and the many models that use its layout (SmolLM2, TinyLlama, Yi ...)."""
    reader = ConfigReader(config)
    bias, norm = reader.boolean("attention_bias", False), rms_norm(config)
    mixer = attention(config, qkv_bias=bias, output_bias=bias)
    mlp = gated_mlp(config, bias=reader.boolean("mlp_bias", False))
    layers = [pre_norm(mixer, mlp, norm)] * reader.positive_int("num_hidden_layers")
    return decoder(config, layers, final_norm=norm)
