"""Owns the spec of Apertus; knows nothing about weights or the runtime."""

from collections.abc import Mapping
from typing import Any

from llm_models.architectures import architecture
from llm_models.architectures.common import attention, decoder, rms_norm
from llm_models.blocks.attention import QKNorm
from llm_models.blocks.layer import pre_norm
from llm_models.blocks.mlp import MLP
from llm_models.config import ConfigReader
from llm_models.names import LLAMA_NAMES
from llm_models.spec import DecoderSpec

_NAMES = LLAMA_NAMES.but(
    {
        "attention_layernorm": "attention.norm",
        "feedforward_layernorm": "mlp.norm",
        "mlp.act_fn": "mlp.activation",
    },
    without=("input_layernorm", "post_attention_layernorm", "mlp.gate_proj"),
    harmless=(r".*\.act_fn\.eps",),  # The activation's own constant, kept as a buffer.
)
_DEFAULT_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 12000000.0,
    "factor": 8.0,
    "original_max_position_embeddings": 8192,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
}


@architecture("ApertusForCausalLM", "Apertus1p5TextForCausalLM")
def apertus(config: Mapping[str, Any]) -> DecoderSpec:
    """Apertus: Llama with norms of heads and a feed-forward without gate, whose xIELU has trained numbers."""
    if config.get("rope_parameters") is None and config.get("rope_scaling") is None:
        config = {**config, "rope_parameters": _DEFAULT_ROPE}
    reader, norm = ConfigReader(config), rms_norm(config, default=1e-5)
    if config.get("output_vocab_size") != config.get("vocab_size"):
        reader.refuse("output_vocab_size", "a head smaller than the vocabulary is not supported")
    bias = reader.boolean("attention_bias", False)
    mixer = attention(config, qkv_bias=bias, output_bias=bias, qk_norm=QKNorm(norm=norm), theta=12000000.0)
    is_xielu = config.get("hidden_act", "xielu") == "xielu"
    mlp = MLP(
        intermediate_size=reader.positive_int("intermediate_size"),
        activation="xielu" if is_xielu else reader.activation(),
        gated=False,
    )
    layers = [pre_norm(mixer, mlp, norm)] * reader.positive_int("num_hidden_layers")
    return decoder(config, layers, final_norm=norm, names=_NAMES)
