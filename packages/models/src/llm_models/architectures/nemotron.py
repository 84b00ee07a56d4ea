"""Owns the specs of dense Nemotron and Jais 2; knows nothing about weights or the runtime."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from llm_models.architectures import architecture
from llm_models.architectures.common import attention, decoder, layer_norm
from llm_models.architectures.layouts import plain_mlp
from llm_models.blocks.layer import pre_norm
from llm_models.blocks.norm import Norm
from llm_models.config import ConfigReader
from llm_models.spec import DecoderSpec


@architecture("NemotronForCausalLM")
def nemotron(config: Mapping[str, Any]) -> DecoderSpec:
    """Nemotron-4 and Minitron: layer norms that scale by 1 + w, half-turned heads, squared ReLU, no gate."""
    return _nemotron(config, replace(layer_norm(config, "norm_eps"), plus_one=True), partial=0.5, bias=False)


@architecture("Jais2ForCausalLM")
def jais2(config: Mapping[str, Any]) -> DecoderSpec:
    """Jais 2: layer norms, biases everywhere, squared ReLU, no gate."""
    return _nemotron(config, layer_norm(config), partial=1.0, bias=True)


def _nemotron(config: Mapping[str, Any], norm: Norm, *, partial: float, bias: bool) -> DecoderSpec:
    reader = ConfigReader(config)
    attention_bias = reader.boolean("attention_bias", bias)
    mixer = attention(config, qkv_bias=attention_bias, output_bias=attention_bias, partial=partial)
    mlp = plain_mlp(config, bias=reader.boolean("mlp_bias", bias))
    layers = [pre_norm(mixer, mlp, norm)] * reader.positive_int("num_hidden_layers")
    return decoder(config, layers, final_norm=norm)
