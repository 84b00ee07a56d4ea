"""Owns the spec of dense ERNIE 4.5; knows nothing about weights or the runtime."""

from collections.abc import Mapping
from typing import Any

from llm_models.architectures import architecture
from llm_models.architectures.common import attention, decoder, gated_mlp, rms_norm
from llm_models.architectures.layouts import with_defaults
from llm_models.blocks.layer import pre_norm
from llm_models.config import ConfigReader
from llm_models.spec import DecoderSpec


# The first release's name has another underscore.
@architecture("Ernie4_5ForCausalLM", "Ernie4_5_ForCausalLM")
def ernie(config: Mapping[str, Any]) -> DecoderSpec:
    """ERNIE 4.5 0.3B: Llama whose rope turns neighbouring pairs."""
    config = with_defaults(config, head_dim=128)
    reader, norm = ConfigReader(config), rms_norm(config, default=1e-5)
    bias = reader.boolean("use_bias", False)
    mixer = attention(config, qkv_bias=bias, output_bias=bias, theta=500000.0, interleaved=True)
    layer = pre_norm(mixer, gated_mlp(config, bias=bias), norm)
    return decoder(config, [layer] * reader.positive_int("num_hidden_layers"), final_norm=norm, tied=True)
