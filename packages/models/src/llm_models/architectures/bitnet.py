"""Owns the spec of BitNet with unpacked weights; knows nothing about weights or the runtime."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from llm_models.architectures import architecture
from llm_models.architectures.common import attention, decoder, gated_mlp, rms_norm
from llm_models.architectures.layouts import with_defaults
from llm_models.blocks.layer import pre_norm
from llm_models.config import ConfigReader
from llm_models.names import LLAMA_NAMES
from llm_models.spec import DecoderSpec

_NAMES = LLAMA_NAMES.but(
    {"self_attn.attn_sub_norm": "attention.output_norm", "mlp.ffn_sub_norm": "mlp.inner_norm"}
)


@architecture("BitNetForCausalLM")
def bitnet(config: Mapping[str, Any]) -> DecoderSpec:
    """BitNet b1.58: Llama with norms before the output projections.

    Only what the config calls unquantized: `decoder` refuses a `quantization_config`.
    """
    config = with_defaults(config, hidden_act="relu2")
    reader, norm = ConfigReader(config), rms_norm(config, default=1e-5)
    bias = reader.boolean("attention_bias", False)
    mixer = attention(config, qkv_bias=bias, output_bias=bias, theta=500000.0)
    layer = pre_norm(replace(mixer, output_norm=norm), replace(gated_mlp(config), inner_norm=norm), norm)
    layers = [layer] * reader.positive_int("num_hidden_layers")
    return decoder(config, layers, final_norm=norm, names=_NAMES)
