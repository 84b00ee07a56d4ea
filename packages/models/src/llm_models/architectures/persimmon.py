"""Owns the spec of Persimmon; knows nothing about weights or the runtime."""

from collections.abc import Mapping
from typing import Any

from llm_models.architectures import architecture
from llm_models.architectures.common import attention, decoder, layer_norm
from llm_models.architectures.layouts import plain_mlp
from llm_models.blocks.attention import QKNorm
from llm_models.blocks.layer import pre_norm
from llm_models.config import ConfigReader
from llm_models.names import ROTARY_BUFFERS, Names, groups
from llm_models.spec import DecoderSpec


@architecture("PersimmonForCausalLM")
def persimmon(config: Mapping[str, Any]) -> DecoderSpec:
    """Persimmon 8B: layer norms, also of heads; biases everywhere, half of each head turns."""
    reader, norm = ConfigReader(config), layer_norm(config)
    heads = reader.positive_int("num_attention_heads")
    # Every head has its own keys, and its size follows from the width.
    config = {**config, "num_key_value_heads": heads, "head_dim": None}
    qk_norm = QKNorm(norm=norm) if reader.boolean("qk_layernorm", True) else None
    mixer = attention(config, qkv_bias=True, output_bias=True, qk_norm=qk_norm, partial=0.5)
    layer = pre_norm(mixer, plain_mlp(config, bias=True), norm)
    layers = [layer] * reader.positive_int("num_hidden_layers")
    return decoder(config, layers, final_norm=norm, names=_names(heads))


def _names(heads: int) -> Names:
    return Names(
        top={"model.embed_tokens": "embedding", "model.final_layernorm": "final_norm", "lm_head": "head"},
        layer="model.layers.{i}",
        inside={
            "input_layernorm": "attention.norm",
            "self_attn.query_key_value": groups(heads, "attention.query", "attention.key", "attention.value"),
            "self_attn.q_layernorm": "attention.query_norm",
            "self_attn.k_layernorm": "attention.key_norm",
            "self_attn.dense": "attention.output",
            "post_attention_layernorm": "mlp.norm",
            "mlp.dense_h_to_4h": "mlp.up",
            "mlp.dense_4h_to_h": "mlp.down",
        },
        optional_prefix="model.",
        harmless=ROTARY_BUFFERS,
    )
