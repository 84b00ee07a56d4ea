"""Owns the spec of Arcee's AFM; knows nothing about weights or the runtime."""

from collections.abc import Mapping
from typing import Any

from llm_models.architectures import architecture
from llm_models.architectures.common import attention, decoder, rms_norm
from llm_models.architectures.layouts import plain_mlp
from llm_models.blocks.layer import pre_norm
from llm_models.config import ConfigReader
from llm_models.spec import DecoderSpec


@architecture("ArceeForCausalLM")
def arcee(config: Mapping[str, Any]) -> DecoderSpec:
    """AFM: Llama with a feed-forward without gate."""
    reader, norm = ConfigReader(config), rms_norm(config, default=1e-5)
    bias = reader.boolean("attention_bias", False)
    mixer = attention(config, qkv_bias=bias, output_bias=bias)
    mlp = plain_mlp(config, bias=reader.boolean("mlp_bias", False))
    layers = [pre_norm(mixer, mlp, norm)] * reader.positive_int("num_hidden_layers")
    return decoder(config, layers, final_norm=norm)
