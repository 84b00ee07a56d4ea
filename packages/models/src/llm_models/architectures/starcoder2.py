"""Owns the spec of StarCoder 2; knows nothing about weights or the runtime."""

from collections.abc import Mapping
from typing import Any

from llm_models.architectures import architecture
from llm_models.architectures.common import attention, decoder, layer_norm
from llm_models.architectures.layouts import plain_mlp
from llm_models.blocks.layer import pre_norm
from llm_models.config import ConfigReader
from llm_models.names import LLAMA_NAMES
from llm_models.spec import DecoderSpec

_NAMES = LLAMA_NAMES.but(
    {"mlp.c_fc": "mlp.up", "mlp.c_proj": "mlp.down"},
    without=("mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"),
)


@architecture("Starcoder2ForCausalLM")
def starcoder2(config: Mapping[str, Any]) -> DecoderSpec:
    """StarCoder 2: layer norms, biases, a feed-forward without gate, at times a window over all layers."""
    reader, norm = ConfigReader(config), layer_norm(config, "norm_epsilon")
    bias = reader.boolean("use_bias", True)
    window = reader.positive_int("sliding_window") if reader.has("sliding_window") else None
    mixer = attention(config, qkv_bias=bias, output_bias=bias, sliding_window=window)
    layer = pre_norm(mixer, plain_mlp(config, bias=bias, default="gelu_pytorch_tanh"), norm)
    layers = [layer] * reader.positive_int("num_hidden_layers")
    return decoder(config, layers, final_norm=norm, names=_NAMES, tied=True)
